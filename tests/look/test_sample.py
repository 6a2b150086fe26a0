"""What the kernel shows of blocked processes, and one look at many, stacks included."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import PATIENCE_S, until

from lightning_hangcheck.look.kernel import (
    CALLS,
    MOST_THREADS,
    SEPARATE,
    UNIFIED,
    kernel_state,
    kill_counter,
    memory_use,
    with_threads_of,
)
from lightning_hangcheck.look.proc import vitals
from lightning_hangcheck.look.sample import KeptStacks, Target, look_at
from lightning_hangcheck.look.stacks import python_stacks

if TYPE_CHECKING:
    from processes import StartProgram

    from lightning_hangcheck.model.evidence import ProcessState


@pytest.mark.real
def test_a_process_that_cannot_be_paused_is_read_all_the_same(program: StartProgram) -> None:
    pid = program("uninterruptible.py").pid
    until(lambda: vitals(pid).state == "D", "an uninterruptible wait")
    look = look_at([Target(pid=pid, rank=3)], PATIENCE_S)
    ((_, seen),) = look.samples
    assert look.gaps == ()
    assert seen.kernel.state == "D"
    functions = [frame.function for frame in seen.stack.threads[0].frames]
    assert "waits_for_its_child" in functions


READING_LINES = """
import sys
print("reads", flush=True)
for line in sys.stdin:
    def goes_on():
        print(line, end="", flush=True)
        sys.stdin.readline()
    goes_on()
"""


def test_a_process_that_has_not_run_since_keeps_its_stacks_and_one_that_ran_is_read_again() -> None:
    def stands_in() -> str:
        state, _ = kernel_state(pid, 0, PATIENCE_S)
        stacks.append(kept.of(pid, 0, state, PATIENCE_S)[0])
        return stacks[-1].threads[0].frames[-1].function

    kept, stacks = KeptStacks(), []
    command = [sys.executable, "-c", READING_LINES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        pid = reader.pid
        try:
            assert reader.stdout.readline() == b"reads\n"
            until(lambda: vitals(pid).state == "S", "it to wait")
            assert [stands_in(), stands_in()] == ["<module>", "<module>"]
            assert stacks[0] is stacks[1]
            reader.stdin.write(b"on\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == b"on\n"
            until(lambda: vitals(pid).state == "S", "it to wait again")
            assert stands_in() == "goes_on"
        finally:
            reader.kill()


def test_of_a_look_that_was_given_up_nothing_more_is_begun() -> None:
    """The job has ended: who waits for this process to end does not wait for all its probes."""
    look = look_at([Target(pid=os.getpid(), rank=0)] * 100, PATIENCE_S, given_up=lambda: True)
    assert [(one.kernel, one.stack) for _, one in look.samples] == [(None, None)] * 100
    assert look.gaps == ()


def test_where_time_is_over_before_its_stack_was_asked_for_a_process_has_a_gap() -> None:
    over = iter([False, True])
    look = look_at([Target(pid=os.getpid())], PATIENCE_S, given_up=lambda: next(over))
    ((_, seen),) = look.samples
    assert (seen.kernel is not None, seen.stack) == (True, None)
    assert "no time was left" in look.gaps[-1].why


def look(pid: int) -> ProcessState:
    """The state, once the kernel gave all there is to see."""
    state, gaps = kernel_state(pid, 3, PATIENCE_S)
    assert gaps == ()
    return state


@pytest.mark.skipif(sys.version_info < (3, 11), reason="time.sleep sleeps in select before 3.11")
def test_a_sleeper_is_in_clock_nanosleep(program: StartProgram) -> None:
    running = program("sleeping.py", "odd) R (name")

    def asleep() -> ProcessState | None:
        state = look(running.pid)
        call = CALLS.get(state.threads[0].syscall)
        return state if state.state == "S" and call and call.name == "clock_nanosleep" else None

    state = until(asleep, "it to sleep")
    assert state.parent_pid == os.getpid()
    assert len(state.threads[0].arguments) == 6
    assert "nanosleep" in state.threads[0].wchan
    assert vitals(running.pid).is_still(state.started_ticks)
    assert state.rss_bytes > 2**20
    assert state.read_bytes > 0


def test_a_handler_for_a_timer_s_signal_is_told(program: StartProgram) -> None:
    before = signal.signal(signal.SIGVTALRM, lambda *_: None)
    try:
        own, _ = kernel_state(os.getpid(), None, 1.0)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    other = look(program("sleeping.py").pid)
    assert (own.catches_timers, other.catches_timers) == (True, False)


def test_time_in_the_queue_for_a_processor_is_counted(program: StartProgram) -> None:
    """Two that compute on one processor wait for each other half of the time."""
    running = [program("busy_loop.py") for _ in range(2)]
    for one in running:
        os.sched_setaffinity(one.pid, {min(os.sched_getaffinity(one.pid))})
    before = look(running[0].pid).threads[0].queued_s
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


def test_threads_that_run_python_are_read_even_if_no_time_was_left_for_all(
    program: StartProgram,
) -> None:
    running = program("many_threads.py", "3")
    hurried, _ = kernel_state(running.pid, 3, 0.0)
    assert len(hurried.threads) == 1
    stack, _ = python_stacks(running.pid, 3, PATIENCE_S)
    whole = with_threads_of(hurried, stack)
    assert {one.tid for one in stack.threads} <= {one.tid for one in whole.threads}
    assert whole.threads_left_out == hurried.threads_left_out - 3


def test_without_control_groups_the_machines_counter_and_limit_count(tmp_path: Path) -> None:
    counter = kill_counter(os.getpid(), groups=tmp_path)
    assert (counter.scope, counter.file) == ("machine", "/proc/vmstat")
    use = memory_use(os.getpid(), groups=tmp_path)
    assert (use.scope, use.limit_bytes) == ("machine", psutil.virtual_memory().total)
    assert 0 < use.used_bytes < use.limit_bytes


def test_a_group_above_that_has_less_left_counts_and_so_do_its_kills(tmp_path: Path) -> None:
    """Written for both versions of control groups, whichever this machine has."""
    separate = "memory:" in Path("/proc/self/cgroup").read_text()
    group = tmp_path / "memory" if separate else tmp_path
    used, limit, cached, kills = SEPARATE if separate else UNIFIED
    group.mkdir(exist_ok=True)
    (group / used).write_text("9000000\n")
    (group / limit).write_text("10000000\n")
    (group / "memory.stat").write_text(f"anon 1\n{cached} 2000000\n")
    (group / kills).write_text("oom 5\noom_kill 3\n")
    use, counter = (read(os.getpid(), groups=tmp_path) for read in (memory_use, kill_counter))
    assert (use.scope, use.used_bytes, use.limit_bytes) == ("control group", 7_000_000, 10_000_000)
    assert (counter.scope, counter.since()) == ("control group", 0)
    (group / limit).write_text("max\n")
    (group / kills).write_text("oom_kill 4\n")
    assert memory_use(os.getpid(), groups=tmp_path).scope == "machine"
    assert counter.since() == 1
    (group / kills).unlink()
    assert counter.since() == 0, "of a group that is gone"
