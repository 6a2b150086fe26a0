"""Must a phase run again? By its metric, its files, and what its script asked for."""

from __future__ import annotations

import pytest
from ledger.lines import begun, ended, file, story

from lightning_hangcheck.ledger.ledger_file import Fingerprint
from lightning_hangcheck.ledger.phase_history import (
    Answer,
    Decision,
    IfDone,
    PhaseDone,
    answered,
    decide,
    question,
)
from lightning_hangcheck.ledger.spending import Prices, read_prices

DATA, MADE = file("/data"), file("/last.ckpt")


def decided(
    if_done: IfDone,
    *present: Fingerprint,
    inputs: tuple[Fingerprint, ...] | None = None,
    **metrics: float,
) -> Decision:
    """Of a phase that was run with DATA and made MADE, where these files are present now."""
    told = story(
        begun("a", "train", DATA), ended("a", MADE, **metrics),
        begun("b", "evaluate", MADE), ended("b", duration_s=600.0, accuracy=0.8),
    )  # fmt: skip
    files = {one.path: one for one in present or (DATA, MADE)}
    gone = Fingerprint(path="", how="it is not there")
    return decide(told, "train", if_done, inputs, look=lambda path: files.get(path, gone))


@pytest.mark.parametrize(
    ("val_acc", "act"), [(0.85, "reuse"), (0.8499, "ask"), (0.70, "ask"), (0.6999, "run")]
)
def test_the_metric_decides_by_two_thresholds(val_acc: float, act: str) -> None:
    assert decided("ask", val_acc=val_acc).act == act


def test_without_a_metric_a_person_is_asked() -> None:
    assert decided("ask").act == "ask"
    assert decided("ask", val_acc=0.9, loss=0.1).act == "ask"


def test_changed_files_are_asked_about_however_good_the_metric_was() -> None:
    decision = decided("ask", file("/data", "22"), MADE, val_acc=0.99)
    assert (decision.act, decision.why) == (
        "ask",
        "/data has changed: 1 bytes then, 2 now",
    )


@pytest.mark.parametrize(
    ("present", "why"),
    [
        ((file("/data", "2"), MADE), "/data has changed (known by its whole content)"),
        ((DATA,), "/last.ckpt cannot be compared (it is not there)"),
    ],
)
def test_reuse_only_where_everything_is_as_it_was(
    present: tuple[Fingerprint, ...], why: str
) -> None:
    assert decided("reuse").act == "reuse"
    changed = decided("reuse", *present)
    assert (changed.act, changed.why) == ("run", why)


def test_other_inputs_are_a_change() -> None:
    assert decided("reuse", inputs=(file("/other"),)).why == (
        "/other is a new input; /data is not an input any more"
    )


def test_what_must_not_run_twice_is_refused_unless_something_changed() -> None:
    with pytest.raises(PhaseDone, match="phase train is done since"):
        decided("error")
    assert decided("error", file("/data", "2"), MADE).act == "run"


def test_what_is_not_done_runs() -> None:
    assert decide(story(begun("a", "train")), "train", "error").act == "run"


def test_the_question_names_each_way_with_time_price_and_what_becomes_stale() -> None:
    asked = question(decided("ask", val_acc=0.8), read_prices(["A100=1.5/h"]))
    assert asked.splitlines() == [
        "phase train: val_acc 0.8 is between poor (0.7) and good (0.85)",
        "  reuse  what it made (val_acc 0.8): no time, no price",
        "  rerun  1 h 00 min, price 3.00, as the last time; what rests on it becomes stale:",
        "         evaluate (accuracy 0.8), 10 min 00 s, price 0.50",
    ]
    assert "price 3.00" not in question(decided("ask", val_acc=0.8), Prices())


@pytest.mark.parametrize(
    ("if_done", "val_acc", "answer", "act"),
    [
        ("reuse", 0.9, "ask", "reuse"),
        ("reuse", 0.9, "reuse", "reuse"),
        ("reuse", 0.9, "rerun", "run"),
        ("ask", 0.9, "rerun", "run"),
        ("ask", 0.8, "ask", "ask"),
        ("ask", 0.8, "reuse", "reuse"),
        ("ask", 0.8, "rerun", "run"),
        ("ask", 0.6, "reuse", "run"),
        ("rerun", 0.9, "reuse", "run"),
    ],
)
def test_a_standing_answer_is_heard_and_told(
    if_done: IfDone, val_acc: float, answer: Answer, act: str
) -> None:
    before = decided(if_done, val_acc=val_acc)
    after = answered(before, answer)
    assert after.act == act
    assert (after.why != before.why) is (after.act != before.act)
    assert after.why.endswith(f"HANGCHECK_IF_DONE={answer}") is (after.act != before.act)
