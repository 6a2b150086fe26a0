"""Evaluation on rank 0 of two real ranks: in turn, out of turn, failing, late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hooks.launching import OFFLINE, TORCHRUN, run_job

import lightning_hangcheck as hc
from lightning_hangcheck.errors import BadUsage, StepOutOfTurn

if TYPE_CHECKING:
    from pathlib import Path

WRONG = {
    "again": ("StepOutOfTurn", "again: step 1 came again (on rank 0)"),
    "apart": ("StepOutOfTurn", "step 4 came after step 1, and steps 2-3 are left out (on rank 1)"),
    "failing": ("MeetingFailed", "'failing at step 2' after"),
    "lost": ("MeetingFailed", "step_2.csv is not there"),
    "late": ("MeetingFailed", "did not finish 'late at step 0' within 2 s"),
}


@pytest.mark.real
def test_rank_zero_evaluates_and_the_other_goes_on_when_it_is_done(tmp_path: Path) -> None:
    """Two ranks that evaluate well, and then in each way that is wrong, which both raise alike."""
    how = ("well", *WRONG)
    job = run_job(tmp_path, "hooks_evaluation.py", *how, launcher=TORCHRUN, environment=OFFLINE)
    assert job.code == 0, job.errors
    for step in ("0", "1", "2", "final"):
        said = job.of(f"after {step}")
        assert [said[rank]["needed"] for rank in (0, 1)] == [True, False]
        assert said[1]["there"], "rank 1 went on before the results were there"
    assert [said["total"] for said in job.of("sum").values()] == [8.0, 8.0]
    assert "About to call well at step 2..." in job.errors
    assert "About to call wait for rank 0: well at step 2..." in job.errors
    assert "1 result of step final as expected; steps 0, 1, 2, final there" in job.errors
    for wrong, (kind, words) in WRONG.items():
        failed = job.of(f"failed {wrong}")
        assert [failed[rank]["kind"] for rank in (0, 1)] == [kind, kind]
        assert failed[0]["error"].splitlines()[0] == failed[1]["error"].splitlines()[0]
        assert words in failed[0]["error"]


def alone(step: int | str, name: str, **named: object) -> hc.rank_zero_evaluation:
    return hc.rank_zero_evaluation(step, 30.0, name=name, **named)


@pytest.mark.parametrize(("begin", "first"), [(0, None), (1, 3)])
def test_alone_a_process_evaluates_at_the_steps_that_are_due(begin: int, first: int | None) -> None:
    """Steps before the first evaluation are nothing to refuse."""
    for step in range(begin, 7):
        with alone(step, f"due from {begin}", every=3, first=first) as evaluation:
            assert evaluation.needed == (step in (0, 3, 6))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((0, 1, 1), "step 1 came again;"),
        ((0, 2), "step 2 came after step 0, and step 1 is left out"),
        ((2, 1), "step 1 came after step 2, which is later"),
        (("final", 3), "step 3 came after step final"),
        ((100, 200, 400), "step 400 came after step 200, and step 300 is left out"),
    ],
)
def test_a_step_out_of_turn_is_refused(steps: tuple[int | str, ...], words: str) -> None:
    *before, last = steps
    every = 100 if 100 in steps else 1
    for step in before:
        with alone(step, str(steps), every=every):
            pass
    with pytest.raises(StepOutOfTurn, match=words), alone(last, str(steps), every=every):
        pytest.fail("its body ran")


@pytest.mark.parametrize(
    "named",
    [
        {"every": 0},
        {"every": 2.0},
        {"first": 6, "every": 2},
        {"first": 1, "every": 2},
        {"first": -1},
        *({"step": step} for step in (-1, True, 1.5, "last", None)),
    ],
)
def test_numbers_that_mean_nothing_are_refused(named: dict[str, Any]) -> None:
    with pytest.raises(BadUsage), alone(**{"step": 4, "name": "numbers", **named}):
        pytest.fail("its body ran")
