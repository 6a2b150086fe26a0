"""What the lines of a ledger tell together."""

from __future__ import annotations

import os

import pytest
from ledger.lines import HERE, begun, discarded, ended, file, story
from msgspec.structs import replace

from lightning_hangcheck.ledger.ledger_file import Measured, Reused
from lightning_hangcheck.ledger.phase_history import process_alive
from lightning_hangcheck.machine import read_process_stat


def test_a_phase_that_ended_is_done_with_its_time_and_metrics() -> None:
    (phase,) = story(begun("a", "train"), ended("a", duration_s=12.0, val_acc=0.91)).phases
    assert (phase.status, phase.duration_s, phase.metrics) == ("done", 12.0, {"val_acc": 0.91})
    assert phase.metric == ("val_acc", 0.91)


@pytest.mark.parametrize(
    ("alive", "status"), [(True, "running"), (False, "interrupted"), (None, "unknown")]
)
def test_a_phase_without_an_end_is_told_by_its_process(alive: bool | None, status: str) -> None:
    measured = Measured(id="a", at="", after_s=7.0, metrics={"loss": 2.0})
    (phase,) = story(begun("a", "train"), measured, alive=alive).phases
    assert (phase.status, phase.duration_s, phase.metrics) == (status, 7.0, {"loss": 2.0})


def test_a_process_is_known_by_its_id_and_its_start() -> None:
    stat = read_process_stat(os.getpid())
    assert stat is not None
    own = replace(HERE, host=os.uname().nodename, pid=os.getpid(), started_ticks=stat.started_ticks)
    assert process_alive(own) is True
    assert process_alive(replace(own, started_ticks=stat.started_ticks - 1)) is False
    assert process_alive(replace(own, host="another")) is None


def test_a_clock_that_was_set_back_gives_no_negative_time() -> None:
    (phase,) = story(begun("a", "train"), ended("a", duration_s=-5.0)).phases
    assert phase.duration_s == 0.0


def test_what_failed_or_was_discarded_does_not_count() -> None:
    told = story(
        begun("a", "train"), ended("a"), discarded("a", "train", "it was run again"),
        begun("b", "train"), ended("b", error="ValueError: no"),
    )  # fmt: skip
    assert [phase.counts for phase in told.phases] == [False, False]
    assert told.last_done("train") is None


def test_the_newest_that_made_the_same_files_is_the_one_at_stake() -> None:
    told = story(
        begun("a", "train"), ended("a", file("/out/1")),
        begun("b", "train"), ended("b", file("/out/2")),
    )  # fmt: skip
    found = told.last_done("train", ["/out/1"])
    assert found is not None
    assert found.id == "a"
    assert told.last_done("train", ["/out/3"]) is None


def test_what_rests_on_a_phase_is_found_at_any_remove_and_within_folders() -> None:
    told = story(
        begun("a", "prepare"), ended("a", file("/data")),
        begun("b", "train", file("/data/train.bin")), ended("b", file("/last.ckpt")),
        begun("c", "evaluate", file("/last.ckpt")), ended("c", accuracy=0.9),
        begun("d", "other", file("/elsewhere")), ended("d"),
    )  # fmt: skip
    assert [phase.name for phase in told.resting_on(told.phases[0])] == ["train", "evaluate"]


def test_what_rests_on_the_same_files_of_an_earlier_run_is_found() -> None:
    told = story(
        begun("a", "prepare"), ended("a", file("/data")),
        begun("b", "train", file("/data")), ended("b", file("/last.ckpt")),
        begun("c", "prepare"), ended("c", file("/data")),
        replace(discarded("a", "prepare", "it was run again"), by="c"),
    )  # fmt: skip
    found = told.last_done("prepare")
    assert found is not None
    assert [phase.id for phase in told.resting_on(found)] == ["b"]


def test_a_reuse_is_counted() -> None:
    reused = Reused(id="a", at="", phase="train", why="good")
    assert story(begun("a", "train"), ended("a"), reused).phases[0].reused == 1
