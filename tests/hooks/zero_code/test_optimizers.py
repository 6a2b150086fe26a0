"""Steps of loops that never heard of us, as the sidecar reads them from the ranks' pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.zero_code.injecting import as_script, page_of, run_program
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 4


@WHEN_ASKED_FOR
@pytest.mark.real
@pytest.mark.parametrize(
    ("loop", "step", "least_beats"),
    [
        ("plain", STEPS, STEPS),
        ("adversaries", STEPS, STEPS),
        # the first step of the next optimizer joins the last of the one before
        ("stages", STEPS - 1, STEPS),
        # a script that beats itself has its own beats and our steps
        ("by_hand", STEPS, STEPS),
    ],
)
def test_a_loop_has_steps_and_beats(loop: str, step: int, least_beats: int, tmp_path: Path) -> None:
    watched, python_path = as_script(tmp_path)
    code, _, errors = run_program("stepping.py", tmp_path, {**watched, "LOOP": loop}, python_path)
    assert code == 0, errors
    beat = page_of(tmp_path)
    assert beat.step == step
    assert beat.beats >= least_beats
    assert loop == "adversaries" or beat.beats == STEPS
