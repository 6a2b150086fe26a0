"""How long a process has slept, by the kernel's own record."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS, until

from lightning_hangcheck.look.proc import slept_s
from lightning_hangcheck.look.py_spy import python_stacks

if TYPE_CHECKING:
    from processes import RunningProgram, StartProgram


@pytest.fixture
def sleeper(program: StartProgram) -> RunningProgram:
    running = program("sleeping.py")
    if slept_s(running.pid) is None:
        pytest.skip("this kernel does not show when a thread last ran")
    return running


def _has_slept(pid: int, seconds: float) -> float | None:
    slept = slept_s(pid)
    return slept if slept is not None and slept >= seconds else None


def test_sleep_is_counted_from_before_anybody_looked(sleeper: RunningProgram) -> None:
    began = time.monotonic()
    slept = until(lambda: _has_slept(sleeper.pid, 0.5), "half a second of sleep")
    assert slept <= time.monotonic() - began + 5.0


def test_reading_stacks_without_a_pause_does_not_wake(sleeper: RunningProgram) -> None:
    """So that a second visit sees a silence as long as the first one did, and longer."""
    until(lambda: _has_slept(sleeper.pid, 0.5), "half a second of sleep")
    stack, _ = python_stacks(sleeper.pid, None, 10.0)
    assert stack is not None
    assert stack.threads[0].frames[-1].function == "waits_in_sleep"
    assert (slept_s(sleeper.pid) or 0.0) >= 0.5


def test_the_sleep_of_a_thread_is_not_that_of_the_main_one(program: StartProgram) -> None:
    """Which serves others and wakes twenty times a second, as that of an actor of Ray does."""
    actor = program(PROGRAMS / "site-packages" / "serving_actor.py", "training_in_thread", "train")
    stack, _ = python_stacks(actor.pid, None, 10.0)
    assert stack is not None
    trains = next(one.tid for one in stack.threads if "stand_still" in str(one.frames))
    if slept_s(actor.pid, trains) is None:
        pytest.skip("this kernel does not show when a thread last ran")
    until(lambda: (slept_s(actor.pid, trains) or 0.0) > 0.5, "the thread to have slept")
    assert (slept_s(actor.pid) or 0.0) < 0.5


def test_one_that_runs_has_not_slept(program: StartProgram) -> None:
    running = program("busy_loop.py")
    until(lambda: slept_s(running.pid) in (0.0, None), "the loop to be seen running")


def test_one_that_is_gone_is_unknown() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert slept_s(gone.pid) is None
