"""How answers are scored, on verdicts made by hand."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hangbench.bench import Outcome, Truth
from hangbench.scoring import Score, score
from hangbench.table import render

from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import VerdictKind

ONSET = datetime(2026, 1, 1, 12, 0, 0, tzinfo=timezone.utc).timestamp()
TRUTH = Truth(
    verdict="hang", culprits=[1], cause="rank_stalled", phase="training_step", function="fetch"
)


def _verdict(kind: VerdictKind, second: int, **changes: Any) -> Verdict:
    fields: dict[str, Any] = {
        "schema_version": 1,
        "verdict": kind,
        "run_id": "run",
        "command": "train",
        "started_at": "2026-01-01T11:00:00Z",
        "detected_at": f"2026-01-01T12:00:{second:02}Z",
        "world_size": 2,
        "nnodes": 1,
        "culprits": [1],
        "cause": "rank_stalled",
        "phase": "training_step",
        "confidence": 0.9,
        "summary": "rank 1 stands still in fetch",
    }
    return msgspec.convert(fields | changes, Verdict)


def _scored(*verdicts: Verdict, truth: Truth = TRUTH) -> Score:
    outcome = Outcome(exit_code=75, output="", verdicts=list(verdicts), onset_s=ONSET)
    return score("case", truth, outcome)


def test_times_count_from_the_onset_to_the_right_name_and_to_the_alarm() -> None:
    result = _scored(
        _verdict("suspect", 2, culprits=[0]), _verdict("suspect", 4), _verdict("hang", 9)
    )
    assert (result.named_after_s, result.alarm_after_s) == pytest.approx((4.0, 9.0))
    assert result.right


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("culprits", {"culprits": [0]}),
        ("cause", {"cause": "spinning"}),
        ("phase", {"phase": "validation"}),
        ("line", {"summary": "rank 1 stands still"}),
    ],
)
def test_each_wrong_answer_counts_by_itself(field: str, changes: dict[str, object]) -> None:
    result = _scored(_verdict("hang", 9, **changes))
    assert getattr(result, field) is False
    assert not result.right


def test_no_verdict_is_no_detection() -> None:
    assert _scored().detected is False
    assert not _scored().right


def test_a_recovered_hang_is_no_detection() -> None:
    assert _scored(_verdict("hang", 9), _verdict("recovered", 20)).detected is False


def test_an_alarm_on_a_healthy_run_is_false_and_a_suspicion_is_counted() -> None:
    healthy = Truth(healthy=True)
    finished = _verdict("finished", 30, culprits=[])
    alarmed = _scored(_verdict("hang", 9), finished, truth=healthy)
    suspected = _scored(_verdict("suspect", 9), finished, truth=healthy)
    assert (alarmed.false_alarm, alarmed.right) == (True, False)
    assert (suspected.suspicions, suspected.right) == (1, True)


def test_the_table_shows_both_sorts_of_cases_and_their_totals() -> None:
    wrong = _scored(_verdict("hang", 9, cause="spinning"))
    healthy = _scored(_verdict("finished", 30, culprits=[]), truth=Truth(healthy=True))
    table = render([wrong, healthy])
    assert "| case | hang | 9.0 s | 9.0 s | right   | WRONG | right | right |" in table
    assert "cause: 0 of 1" in table
    assert "false alarms: 0 of 1 healthy" in table
