"""How answers are scored, and that truths are what the cases hold."""

from __future__ import annotations

import ast
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hangbench.bench import CASES, Outcome, Truth, any_of, cases, truth_of
from hangbench.scoring import Score, score

from lightning_hangcheck.model.slugs import CAUSES, PHASES
from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

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
        "summary": "rank 1 is stuck in fetch (demo/train.py:8): idle for 9 s; rank 0 waits for it",
    }
    return msgspec.convert(fields | changes, Verdict)


def _scored(*verdicts: Verdict, truth: Truth = TRUTH) -> Score:
    outcome = Outcome(exit_code=0, output="", verdicts=list(verdicts), onset_s=ONSET)
    return score("case", truth, outcome)


def test_times_count_from_the_onset_to_the_right_name_and_to_the_alarm() -> None:
    result = _scored(
        _verdict("suspect", 2, culprits=[0]), _verdict("suspect", 4), _verdict("hang", 9)
    )
    assert (result.named_after_s, result.alarm_after_s) == pytest.approx((4.0, 9.0))


def test_an_alarm_before_the_onset_counts_although_it_named_the_right_rank() -> None:
    early = _verdict("hang", 9, detected_at="2026-01-01T11:59:50Z")
    result = _scored(early, _verdict("hang", 9))
    assert (result.early_alarms, result.right) == (1, False)


def test_an_alarm_on_a_healthy_run_is_false_and_a_suspicion_is_counted() -> None:
    healthy = Truth(healthy=True)
    finished = _verdict("finished", 30, culprits=[])
    alarmed = _scored(_verdict("hang", 9), finished, truth=healthy)
    suspected = _scored(_verdict("suspect", 9), finished, truth=healthy)
    assert (alarmed.false_alarm, alarmed.right) == (True, False)
    assert (suspected.suspicions, suspected.right) == (1, True)


NAMES = cases()


HANGING = [name for name in NAMES if not truth_of(name).healthy]


def _wrong(names: list[str], check: Callable[[Truth], bool]) -> list[str]:
    return [name for name in names if not check(truth_of(name))]


def _says_what_is_right(truth: Truth) -> bool:
    return (
        truth.culprits == sorted(truth.culprits)
        and bool(truth.culprits and any_of(truth.verdict) and any_of(truth.cause))
        and {*any_of(truth.verdict)} <= {"hang", "dead", "crashed"}
        and {*any_of(truth.cause)} <= {*CAUSES}
        and {*any_of(truth.phase or [])} <= {*PHASES}
    )


def test_every_truth_says_what_is_right_in_the_contracts_words() -> None:
    assert _wrong(HANGING, _says_what_is_right) == []


def test_every_program_says_what_happens_and_has_the_function() -> None:
    def complete(name: str) -> bool:
        source = (CASES / f"{name}.py").read_text(encoding="utf-8")
        named = all(f"def {function}(" in source for function in any_of(truth_of(name).function))
        return bool(ast.get_docstring(ast.parse(source))) and named

    assert [name for name in NAMES if not complete(name)] == []
