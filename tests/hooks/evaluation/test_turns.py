"""Whether the evaluations of a training come in their turn: none twice, none left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.evaluation import Turns, rank_zero_evaluation

if TYPE_CHECKING:
    from lightning_hangcheck.hooks.evaluation import Step


def taken(turns: Turns, *steps: Step) -> list[str]:
    said = []
    for step in steps:
        said.append(turns.complaint(step))
        turns.take(step)
    return said


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((0, 1, 1), "step 1 came again"),
        ((0, 2), "step 2 came after step 0, and step 1 is left out"),
        ((0, 4), "step 4 came after step 0, and steps 1-3 are left out"),
        ((2, 1), "step 1 came after step 2, which is later"),
        (("final", "final"), "step final came again"),
        (("final", 3), "step 3 came after step final"),
    ],
)
def test_a_step_out_of_turn_is_named(steps: tuple[Step, ...], words: str) -> None:
    *before, last = taken(Turns(), *steps)
    assert before == [""] * len(before)
    assert words in last


def test_what_lies_between_two_evaluations_is_not_left_out() -> None:
    assert "step 200 is left out" in taken(Turns(every=100), 100, 300)[-1]


def test_after_a_resume_the_first_step_is_the_one_that_is_named() -> None:
    assert Turns(every=2).take(6) == [6]
    assert Turns(every=2).take(6, first=2) == [2, 4, 6]


@pytest.mark.parametrize("step", [-1, True, 1.5, "last", None])
def test_what_is_no_step_is_refused(step: Step) -> None:
    with (
        pytest.raises(BadUsage, match="is no step"),
        rank_zero_evaluation(step, 30.0, name="no step"),
    ):
        pytest.fail("its body ran")
