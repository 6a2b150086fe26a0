"""Steps of loops that never heard of us, as the sidecar reads them from the ranks' pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.zero_code.injecting import as_script
from long_tests import WHEN_ASKED_FOR
from processes import start_program

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page import PageReader

if TYPE_CHECKING:
    from pathlib import Path

    from processes import RunningProgram

pytestmark = pytest.mark.real
STEPS = 4


def page_of(program: RunningProgram, tmp_path: Path) -> Beat:
    """The page of a program that has announced itself, of which it then is the only writer."""
    program.announcement()
    beat = PageReader(tmp_path / "shared" / "key" / "pages" / f"{program.pid}.page").read()
    assert isinstance(beat, Beat), beat
    return beat


def finish(program: RunningProgram) -> None:
    program.process.communicate("\n", timeout=120)
    assert program.process.returncode == 0


def step_page(loop: str, tmp_path: Path) -> Beat:
    """Run a loop to its end, and return what its page said."""
    watched, python_path = as_script(tmp_path)
    ours = {**watched, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    program = start_program("stepping.py", loop, environment=ours)
    try:
        beat = page_of(program, tmp_path)
        finish(program)
    finally:
        program.end()
    return beat


@WHEN_ASKED_FOR
@pytest.mark.parametrize("loop", ["plain", "adversaries"])
def test_a_loop_has_steps_and_beats(loop: str, tmp_path: Path) -> None:
    beat = step_page(loop, tmp_path)
    assert beat.step == STEPS
    assert beat.beats >= STEPS
    assert beat.phase == "training_step"


@WHEN_ASKED_FOR
def test_the_first_step_of_the_next_optimizer_joins_the_last_of_the_one_before(
    tmp_path: Path,
) -> None:
    beat = step_page("stages", tmp_path)
    assert (beat.step, beat.beats) == (STEPS - 1, STEPS)


@WHEN_ASKED_FOR
def test_a_script_that_beats_itself_has_its_own_beats_and_our_steps(tmp_path: Path) -> None:
    beat = step_page("by_hand", tmp_path)
    assert (beat.beats, beat.step, beat.phase) == (STEPS, STEPS, "training_step")
