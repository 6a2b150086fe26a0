"""What the lines of a ledger tell together, and whether a phase must run again."""

from __future__ import annotations

import os

import pytest
from ledger.lines import HERE, begun, discarded, ended, file, history
from msgspec.structs import replace

from lightning_hangcheck.ledger.ledger_file import Fingerprint, PastPhase
from lightning_hangcheck.ledger.phase_reuse import Decision, IfDone, decide
from lightning_hangcheck.machine import read_process_stat


@pytest.mark.parametrize(
    ("host", "ticks", "status"),
    [("", 0, "running"), ("", -1, "interrupted"), ("another", 0, "unknown")],
)
def test_a_phase_without_an_end_is_told_by_its_process(host: str, ticks: int, status: str) -> None:
    """A process is known by its id and its start."""
    stat = read_process_stat(os.getpid())
    assert stat is not None
    host, ticks = host or os.uname().nodename, stat.started_ticks + ticks
    place = replace(HERE, host=host, pid=os.getpid(), started_ticks=ticks)
    measured = PastPhase(id="a", at="", duration_s=7.0, metrics={"loss": 2.0})
    (phase,) = history(begun("a", "train", place=place), measured).phases
    assert (phase.status, phase.duration_s, phase.metrics) == (status, 7.0, {"loss": 2.0})


def test_what_failed_or_was_discarded_does_not_count() -> None:
    told = history(
        begun("a", "train"), ended("a"), discarded("a", "it was run again"),
        begun("b", "train"), ended("b", error="ValueError: no"),
    )  # fmt: skip
    assert [phase.counts for phase in told.phases] == [False, False]
    assert told.last_done("train") is None


def test_what_rests_on_a_phase_is_found_at_any_remove_and_within_folders() -> None:
    told = history(
        begun("a", "prepare"), ended("a", file("/data")),
        begun("b", "train", file("/data/train.bin")), ended("b", file("/last.ckpt")),
        begun("c", "evaluate", file("/last.ckpt")), ended("c", accuracy=0.9),
        begun("d", "other", file("/elsewhere")), ended("d"),
    )  # fmt: skip
    assert [phase.name for phase in told.resting_on(told.phases[0])] == ["train", "evaluate"]


DATA, MADE = file("/data"), file("/last.ckpt")


def decided(if_done: IfDone, *present: Fingerprint, **metrics: float) -> Decision:
    """Of a phase that was run with DATA and made MADE, where these files are present now."""
    told = history(
        begun("a", "train", DATA), ended("a", MADE, **metrics),
        begun("b", "evaluate", MADE), ended("b", duration_s=600.0, accuracy=0.8),
    )  # fmt: skip
    files = {one.path: one for one in present or (DATA, MADE)}
    gone = Fingerprint(path="", how="it is not there")
    return decide(told, "train", if_done, None, look=lambda path: files.get(path, gone))


OTHER, LARGER = file("/data", "2"), file("/data", "22")


@pytest.mark.parametrize(
    ("if_done", "present", "metrics", "act", "why"),
    [
        ("ask", (), {"val_acc": 0.85}, "reuse", ""),
        ("ask", (), {"val_acc": 0.8499}, "ask", ""),
        ("ask", (), {}, "ask", "no metric says how well"),
        # changed files are asked about however good the metric was
        ("ask", (LARGER, MADE), {"val_acc": 0.99}, "ask", "/data has changed: 1 bytes then, 2 now"),
        ("reuse", (), {}, "reuse", ""),
        ("reuse", (OTHER, MADE), {}, "run", "/data has changed (known by its whole content)"),
        ("reuse", (DATA,), {}, "run", "/last.ckpt cannot be compared (it is not there)"),
    ],
)
def test_a_phase_is_reused_only_where_all_is_as_it_was_and_went_well(
    if_done: IfDone, present: tuple[Fingerprint, ...], metrics: dict[str, float], act: str, why: str
) -> None:
    decision = decided(if_done, *present, **metrics)
    assert (decision.act, why in decision.why) == (act, True)


def test_what_must_not_run_twice_is_refused_unless_something_changed() -> None:
    assert decided("error").act == "refuse"
    assert decided("error", OTHER, MADE).act == "run"
    assert decide(history(begun("a", "train")), "train", "error").act == "run"
