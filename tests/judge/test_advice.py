"""Advice that is given only where it helps: less text, more saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_LOAD, finding, gone, job, rank

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.job import read_job
from lightning_hangcheck.judge.words import remedies_for, save_advice
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Case, RankView, Spent

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import Cause, Phase

JOB = read_job(job(rank(0, IN_LOAD)))


@pytest.mark.parametrize("cause", ["spinning", "slow_progress"])
@pytest.mark.parametrize(
    ("phase", "advised"), [("generate", True), ("training_step", False), (None, False)]
)
def test_less_text_is_advised_only_where_text_is_made(
    cause: Cause, phase: Phase | None, advised: bool
) -> None:
    texts = [remedy.text for remedy in remedies_for(finding(cause, phase=phase), JOB)]
    assert any("max_new_tokens=256, then 128" in text for text in texts) == advised
    assert texts


MINUTE = 60.0


def trained(view: RankView, minutes: float, epoch_s: float | None, saves: int = 0) -> RankView:
    """The rank after so long a training, of two steps a second."""
    spent = Spent(
        saves=saves,
        steps=int(minutes * 120),
        training_s=minutes * MINUTE,
        epoch_s=epoch_s,
    )
    return msgspec.structs.replace(view, beat=Beat(pid=1), spent=spent)


def ended(minutes: float, epoch_s: float | None, saves: int = 0) -> Case:
    ranks = [trained(gone(0, 0), minutes, epoch_s, saves), trained(gone(1, 0), minutes, epoch_s)]
    return job(*ranks, ended=True, exit_code=0)


@pytest.mark.parametrize(
    ("minutes", "epoch_s", "saves", "told"),
    [
        (
            *(15, 30.0, 0),
            "no save seen in 15 min of training; over 10 min save every 10 to 20 epochs, here "
            "every 5 min to 10 min: ModelCheckpoint(every_n_epochs=10), in "
            "transformers save_steps=600",
        ),
        (
            *(45, 60.0, 1),
            "1 save seen in 45 min of training; over 30 min save every 5 to 10 epochs, here "
            "every 5 min to 10 min: ModelCheckpoint(every_n_epochs=5), in "
            "transformers save_steps=600",
        ),
        (
            *(600, 3600.0, 2),
            "2 saves seen in 600 min of training; save every 10 min to 30 min: "
            "ModelCheckpoint(every_n_train_steps=1200), in transformers save_steps=1200",
        ),
    ],
)
def test_by_run_length_in_epochs_and_minutes_and_in_minutes_where_epochs_are_too_long(
    minutes: float, epoch_s: float, saves: int, told: str
) -> None:
    assert save_advice(ended(minutes, epoch_s, saves)) == told


@pytest.mark.parametrize("epoch_s", [None, 0.5])
def test_where_epochs_are_short_or_unknown_minutes_count(epoch_s: float | None) -> None:
    told = save_advice(ended(45, epoch_s))
    assert told.startswith("no save seen in 45 min of training; save every 10 min to 30 min: ")


@pytest.mark.parametrize(
    ("minutes", "epoch_s", "saves"),
    [
        (10, 30.0, 0),
        (15, 30.0, 2),
        (45, 60.0, 5),
        (45, 0.5, 5),
        (45, None, 2),
        (600, 3600.0, 20),
        (0, None, 0),
    ],
)
def test_a_short_run_and_one_that_saved_often_enough_are_left_alone(
    minutes: float, epoch_s: float | None, saves: int
) -> None:
    assert save_advice(ended(minutes, epoch_s, saves)) == ""


def test_it_is_told_with_the_end_of_a_job_and_not_before() -> None:
    over = judge(ended(45, 60.0))
    assert [item.kind for item in over.evidence] == ["saves"]
    standing = trained(rank(0, IN_LOAD, silent=0.0), 45, 60.0)
    assert "saves" not in [item.kind for item in judge(job(standing)).evidence]
    failed = judge(job(trained(gone(0, 1), 45, 60.0), ended=True, exit_code=1))
    assert failed.verdict == "crashed"
    assert "saves" in [item.kind for item in failed.evidence]
