"""HangCheck in real Trainers of both packages: what the page shows behind each hook."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hooks.launching import OFFLINE, Ended, run_job
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
STEP = ["training_step"] * 5
"""Behind each hook of a step: the page tells it once, the rank's calls tell which part it is in."""
EVALUATED = {
    "validate": "on_validation_batch_start",
    "test": "on_test_batch_start",
    "predict": "on_predict_batch_start",
}


@pytest.fixture(
    scope="module",
    params=["lightning.pytorch", pytest.param("pytorch_lightning", marks=WHEN_ASKED_FOR)],
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One process through all stages, which the tests below look at."""
    folder: Path = tmp_path_factory.mktemp("single")
    ended = run_job(folder, "hooks_single.py", environment={**OFFLINE, "PACKAGE": request.param})
    assert ended.code == 0, ended.errors
    return ended


def rows(job: Ended, event: str, hook: str = "") -> list[list[object]]:
    """Hook, phase, epoch, step and batch, as the page showed them behind the hook."""
    return [row for row in job.of(event)[0]["seen"] if hook in ("", row[0])]


def test_it_is_a_callback_of_that_package_and_stays_one_when_copied(job: Ended) -> None:
    kind = job.of("kind")[0]

    assert kind["callback"]
    assert kind["hangcheck"]
    assert kind["public"]
    assert kind["revived"] == [True, True]
    assert kind["state_key"] == "HangCheck"


def test_each_stage_goes_through_the_phases_of_the_contract_with_its_numbers(job: Ended) -> None:
    phases = [row[1] for row in rows(job, "fit")]
    steps = [*STEP, *STEP, *["validation"] * 5, "dataloading", "dataloading", "checkpoint_save"]
    starts = [row[2:] for row in rows(job, "fit", "on_train_batch_start")]
    ends = [row[2:] for row in rows(job, "fit", "on_train_batch_end")]

    assert phases == [
        *["trainer_init"] * 2,
        *["sanity_check"] * 5,
        *["dataloading"] * 3,
        *steps,
        "dataloading",
        *steps,
        *["teardown"] * 2,
    ]
    assert starts == [[0, 0, 0], [0, 1, 1], [1, 2, 0], [1, 3, 1]], "epoch, step and batch"
    assert ends == starts, "the page tells a step once, when it begins"
    for stage, hook in EVALUATED.items():
        batches = rows(job, stage, hook)
        assert [(row[1], row[4]) for row in batches] == [("validation", n) for n in range(4)]
        assert rows(job, stage)[-1][:2] == ["teardown", "teardown"]


def test_quick_batches_are_told_as_the_others_are(job: Ended) -> None:
    """No hook is called for most of them; a user's own hook is called for each."""
    ours, own = job.of("quick HangCheck")[0], job.of("quick Own")[0]
    for told in (ours, own):
        *starts, last = [row[1:] for row in told["seen"]]
        assert starts == [["training_step", 0, number, number] for number in range(60)]
        assert last[0] == "teardown"
    assert (ours["counted"], own["counted"]) == ([], list(range(60)))
    assert ours["timed"] > 0
    assert (job.of("late")[0]["ending"], job.of("late")[0]["batch"]) == ("raised", 59)


def test_a_save_is_counted_when_it_ends_and_what_training_goes_on_from_is_said(job: Ended) -> None:
    """A tiny model's save takes hundredths of a second: whoever polled would miss it."""
    saved = job.of("saved")[0]
    (line,) = [line for line in job.errors.splitlines() if "training goes on from" in line]
    told = r"training goes on from (/\S+)/end\.ckpt: step 4, epoch 2, 4 batches seen, written \S+ "

    assert (saved["fitted"], saved["step"], saved["again"]) == (2, 4, 3)
    assert re.search(told, line), line
    assert job.of("resumed")[0]["step"] == 6
    assert job.of("resumed")[0]["left"] is None, "copied and pickled, a loop has nothing of ours"


def test_what_goes_wrong_is_said_once_and_training_goes_on(job: Ended) -> None:
    """A hook of ours that cannot work, a second instance, an exception that is caught."""
    broken = rows(job, "broken", "on_train_batch_start")
    raised, went_on = job.of("raised")[0], job.of("went on")[0]

    assert job.errors.count("HangCheck.on_train_batch_start failed (AttributeError") == 1
    assert len(broken) == 2
    assert {row[1] for row in broken} == {"teardown"}, "the second instance does not take over"
    assert job.errors.count("HangCheck was added twice") == 1
    assert job.of("twice")[0]["step"] == 2
    assert raised["ending"] == "raised"
    assert raised["last_words"].startswith("RuntimeError: no more of this in training_step")
    assert job.of("left")[0]["error"] == "no more of this"
    assert (went_on["ending"], went_on["last_words"]) == ("running", ""), "the next fit began"
