"""Steps of loops that never heard of us, as the sidecar reads them from the ranks' pages."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from hooks.zero_code.injecting import PACKAGE, as_script
from processes import start_program

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page.reader import PageReader

if TYPE_CHECKING:
    from pathlib import Path

    from processes import RunningProgram

pytestmark = pytest.mark.real
STEPS = 4


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def page_of(program: RunningProgram, tmp_path: Path) -> Beat:
    """The page of a program that has announced itself, of which it then is the only writer."""
    program.announcement()
    beat = PageReader(tmp_path / "shared" / "key" / "pages" / f"{program.pid}.page").read()
    assert isinstance(beat, Beat), beat
    return beat


def finish(program: RunningProgram) -> str:
    output, _ = program.process.communicate("\n", timeout=120)
    assert program.process.returncode == 0
    return output


def step_page(loop: str, tmp_path: Path) -> Beat:
    """Run a loop to its end, once with us and once without, and return what its page said."""
    watched, python_path = as_script(tmp_path)
    ours = {**watched, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    programs = [
        start_program("stepping.py", loop, environment=environment)
        for environment in (ours, {"PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"})
    ]
    try:
        beat = page_of(programs[0], tmp_path)
        with_us, without = map(finish, programs)
    finally:
        for program in programs:
            program.end()
    assert with_us.splitlines()[-1] == without.splitlines()[-1]
    return beat


@pytest.mark.parametrize("loop", ["plain", "adversaries", "fabric", "accelerate"])
def test_a_loop_has_steps_and_beats_and_the_same_result(loop: str, tmp_path: Path) -> None:
    beat = step_page(loop, tmp_path)
    assert beat.step == STEPS
    assert beat.beats >= STEPS
    assert beat.phase == "training_step"


def test_the_first_step_of_the_next_optimizer_joins_the_last_of_the_one_before(
    tmp_path: Path,
) -> None:
    beat = step_page("stages", tmp_path)
    assert (beat.step, beat.beats) == (STEPS - 1, STEPS)


def test_a_script_that_beats_itself_has_its_own_beats_and_our_steps(tmp_path: Path) -> None:
    beat = step_page("by_hand", tmp_path)
    assert (beat.beats, beat.step, beat.phase) == (STEPS, STEPS, "training_step")


def test_a_compiled_step_goes_on(tmp_path: Path) -> None:
    assert step_page("compiled", tmp_path).ending == "running"


def test_each_rank_of_ddp_has_its_steps(tmp_path: Path) -> None:
    watched, python_path = as_script(tmp_path)
    job = {**watched, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    job |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = [
        start_program(
            "stepping.py", "ddp", environment={**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    try:
        beats = [page_of(rank, tmp_path) for rank in ranks]
        outputs = [finish(rank) for rank in ranks]
    finally:
        for rank in ranks:
            rank.end()
    assert [(one.rank, one.step, one.phase) for one in beats] == [
        (0, STEPS, "training_step"),
        (1, STEPS, "training_step"),
    ]
    assert outputs[0] == outputs[1]
