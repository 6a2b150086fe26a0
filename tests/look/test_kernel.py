"""What the kernel says of really blocked processes and their threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, until

from lightning_hangcheck.look.kernel import MOST_THREADS, kernel_state, with_threads_of
from lightning_hangcheck.look.proc import vitals
from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.model.evidence import ProcessState

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram

# include/uapi: asm/unistd_64.h and asm-generic/unistd.h
NUMBERS_X86 = {"read": 0, "clock_nanosleep": 230, "futex": 202}
NUMBERS_ARM = {"read": 63, "clock_nanosleep": 115, "futex": 98}
NUMBERS = NUMBERS_ARM if os.uname().machine == "aarch64" else NUMBERS_X86


def look(pid: int) -> ProcessState:
    """The state, once the kernel gave all there is to see."""
    state, gaps = kernel_state(pid, 3, PATIENCE_S)
    assert gaps == ()
    return state


def main_thread_in(pid: int, call: str) -> ProcessState:
    """The state, once the main thread is inside that system call."""

    def in_call() -> ProcessState | None:
        state = look(pid)
        return state if state.threads[0].syscall == NUMBERS[call] else None

    return until(in_call, f"the main thread to be in {call}")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="time.sleep sleeps in select before 3.11")
def test_a_sleeper_is_in_clock_nanosleep(program: StartProgram) -> None:
    running = program("sleeping.py", "odd) R (name")
    state = main_thread_in(running.pid, "clock_nanosleep")
    assert state.state == "S"
    assert state.parent_pid == os.getpid()
    assert "nanosleep" in state.threads[0].wchan
    assert vitals(running.pid).is_still(state.started_ticks)
    assert state.rss_bytes > 2**20
    assert state.read_bytes > 0


def test_a_reader_of_a_fifo_shows_the_descriptor_that_it_reads(
    program: StartProgram, tmp_path: Path
) -> None:
    fifo = tmp_path / "nobody writes"
    os.mkfifo(fifo)
    running = program("fifo_reading.py", str(fifo))
    state = main_thread_in(running.pid, "read")
    descriptor = state.threads[0].arguments[0]
    assert fifo.samefile(f"/proc/{running.pid}/fd/{descriptor}")
    assert len(state.threads[0].arguments) == 6


def test_a_child_that_failed_keeps_its_exit_code_until_its_parent_asks() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    try:
        state = until(lambda: (s := look(child.pid)).state == "Z" and s, "the child to end")
        assert (state.exit_code, state.threads[0].syscall) == (3, None)
    finally:
        child.wait(120)


def test_a_busy_loop_is_running_and_in_no_call(program: StartProgram) -> None:
    running = program("busy_loop.py")
    state = until(lambda: (s := look(running.pid)).state == "R" and s, "it to run")
    assert state.threads[0].syscall is None
    assert state.threads[0].wchan == ""


def test_a_handler_for_a_timer_s_signal_is_told(program: StartProgram) -> None:
    before = signal.signal(signal.SIGVTALRM, lambda *_: None)
    try:
        own, _ = kernel_state(os.getpid(), None, 1.0)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    other, _ = kernel_state(program("sleeping.py").pid, None, 1.0)
    assert own is not None
    assert other is not None
    assert (own.catches_timers, other.catches_timers) == (True, False)


def test_the_turns_of_the_main_thread_are_counted_and_of_no_other(program: StartProgram) -> None:
    before = look(os.getpid()).threads[0].turns
    for _ in range(50):
        time.sleep(0.0001)  # each gives the processor away
    after = look(os.getpid()).threads[0].turns
    assert before is not None
    assert after is not None
    assert after - before >= 50
    threads = look(program("many_threads.py", "3").pid).threads
    assert {thread.turns for thread in threads[1:]} <= {None}


def test_time_in_the_queue_for_a_processor_is_counted(program: StartProgram) -> None:
    """Two that compute on one processor wait for each other half of the time."""
    running = [program("busy_loop.py") for _ in range(2)]
    for one in running:
        os.sched_setaffinity(one.pid, {min(os.sched_getaffinity(one.pid))})
    before = look(running[0].pid).threads[0].queued_s
    assert before is not None
    until(lambda: (look(running[0].pid).threads[0].queued_s or 0.0) > before + 0.2, "it to wait")


def test_more_threads_than_we_look_at_are_counted(program: StartProgram) -> None:
    running = program("many_threads.py", str(MOST_THREADS + 9))
    state = look(running.pid)
    assert state.threads[0].tid == running.pid
    assert len(state.threads) == MOST_THREADS
    assert state.threads_left_out == 10
    hurried, _ = kernel_state(running.pid, 3, 0.0)
    assert hurried.threads[0].tid == running.pid, "out of time the main thread is still seen"
    assert hurried.threads_left_out == MOST_THREADS + 10 - len(hurried.threads) > 10


def test_processes_that_vanish_while_we_look_never_raise() -> None:
    """Whatever moment they end at, there is a state or a gap."""
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        child = subprocess.Popen(["true"])
        while child.poll() is None:
            state, gaps = kernel_state(child.pid, 3, PATIENCE_S)
            assert state is not None or gaps


def test_threads_that_run_python_are_read_even_if_no_time_was_left_for_all(
    program: StartProgram,
) -> None:
    running = program("many_threads.py", "3")
    hurried, _ = kernel_state(running.pid, 3, 0.0)
    assert hurried is not None
    assert len(hurried.threads) == 1
    stack, _ = python_stacks(running.pid, 3, PATIENCE_S)
    whole = with_threads_of(hurried, stack)
    assert {one.tid for one in stack.threads} <= {one.tid for one in whole.threads}
    assert whole.threads_left_out == hurried.threads_left_out - 3
