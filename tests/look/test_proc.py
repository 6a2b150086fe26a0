"""What the kernel tells of real processes, in /proc and in one look at many, stacks included."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from lightning_hangcheck.look.proc import (
    UNREADABLE,
    Exited,
    ExitWatcher,
    command_line,
    descendants,
    explain,
    process_ref,
    read_environment,
    slept_s,
    thread_ids,
    vitals,
    waiting_libraries,
)
from lightning_hangcheck.look.sample import KeptStacks, Target, look_at
from lightning_hangcheck.look.stacks import python_stacks
from lightning_hangcheck.machine import PAGE_BYTES, TICKS_PER_SECOND, StatLine, parse_stat
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processes import StartProgram

    from lightning_hangcheck.model.evidence import ProcessState


def test_children_are_found_below_their_parents_each_once(program: StartProgram) -> None:
    running = program("waiting_for.py", "wait_for_any_child")
    children, found = {int(one) for one in running.first_words.split()}, descendants(running.pid)
    assert {each.pid for each in found} == children
    assert {each.parent_pid for each in found} == {running.pid}
    assert all(vitals(each.pid).is_still(each.started_ticks) for each in found)
    assert sorted(descendants(*children, running.pid), key=found.index) == list(found)
    below_us = [one.pid for one in descendants(os.getpid())]
    assert below_us.index(running.pid) < min(map(below_us.index, children)), "parents come first"


def test_environment_and_command_line_are_those_it_was_started_with(program: StartProgram) -> None:
    odd = os.fsdecode(b"\xff\xfe")
    running = program("sleeping.py", GREETING="wörld = round", ODD=odd, RANK="3")
    environment = read_environment(running.pid)
    assert (environment["RANK"], environment["GREETING"]) == ("3", "wörld = round")
    assert environment["ODD"].encode(), "bytes that are no text do not break it"
    assert command_line(running.pid)[-1].endswith("sleeping.py")


GROUP_OF_ONE = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
print("ready", flush=True)
input()
"""


@pytest.mark.real
def test_a_native_thread_is_known_by_the_library_in_which_it_waits() -> None:
    """Those of gloo wait in torch, the main thread in the interpreter."""
    command = [sys.executable, "-W", "ignore", "-c", GROUP_OF_ONE]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            main, *others = thread_ids(process.pid)
            found = waiting_libraries(process.pid, [main, *others])
        finally:
            process.kill()
    assert found[main].startswith(("libpython", "python"))
    assert "libtorch_cpu.so" in {found[tid] for tid in others}


def test_a_process_that_is_gone_leaves_a_gap() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert (descendants(gone.pid), process_ref(gone.pid)) == ((), None)
    for read, what in ((read_environment, "environment"), (command_line, "command line")):
        gap = Gap(f"{what} of pid {gone.pid}", None, "the process has ended", "process_memory")
        assert read(gone.pid) == gap


def access(**changes: Any) -> dict[str, Any]:
    return {"own_user": 1000, "their_user": 1000, "capable": False, "yama_scope": 0} | changes


@pytest.mark.parametrize(
    ("facts", "why", "remedy"),
    [
        (access(their_user=7), "belongs to user id 7, we are user id 1000", "run as that user"),
        (access(yama_scope=1), "only its ancestors", "kernel.yama.ptrace_scope=0"),
        (access(yama_scope=3, capable=True), "nobody", "/etc/sysctl.d"),
        (access(own_user=0), "container", "--cap-add=SYS_PTRACE"),
        (access(), "protected", "run as root"),
    ],
)
def test_each_reason_comes_with_its_way_out(facts: dict[str, Any], why: str, remedy: str) -> None:
    refusal = explain(**facts)
    assert why in refusal.why
    assert remedy in refusal.remedy


def test_a_pid_that_was_given_to_another_process_is_told_apart() -> None:
    ours = vitals(os.getpid())
    assert ours.is_still(ours.started_ticks)
    assert not ours.is_still(ours.started_ticks + 1)
    assert ours.is_still(0)  # a start that was never learnt tells nothing apart
    assert UNREADABLE.is_still(4711)


def test_a_process_without_a_spare_descriptor_does_not_take_others_for_gone() -> None:
    """EMFILE says nothing about the process that we wanted to look at."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        seen = vitals(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen.state == "?"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor alone")
def test_one_that_is_woken_on_another_processor_has_not_slept_since_the_machine_began(
    program: StartProgram,
) -> None:
    running = program("changing_processors.py")
    assert max(slept_s(running.pid) or 0.0 for _ in range(20_000)) < 30.0


# fields 3 to 52 of a process that was killed by SIGKILL (exit status 9)
FIELDS = (
    "Z 55 55 57 0 -1 4194304 1931 0 1 0 130 27 0 0 20 0 1 0 111803 93368320 3305 "
    "18446744073709551615 1 2 3 0 0 0 0 16781318 8194 0 0 0 17 0 0 0 0 0 0 4 5 6 7 8 9 10 9"
)


def test_a_main_thread_that_left_the_others_alone_is_no_end_of_its_process() -> None:
    one, two = (FIELDS.replace(" 20 0 1 ", f" 20 0 {threads} ") for threads in (1, 2))
    assert [parse_stat(f"7 (a) {each}".encode()).has_ended for each in (one, two)] == [True, False]


@given(st.binary(max_size=15).filter(lambda name: b"\0" not in name))
def test_any_process_name_leaves_the_fields_behind_it_whole(name: str) -> None:
    line = b"4711 (" + name + b") " + FIELDS.encode() + b"\n"
    assert parse_stat(line) == StatLine(
        name=name.decode(errors="replace"),
        state="Z",
        parent_pid=55,
        major_faults=1,
        cpu_s=157 / TICKS_PER_SECOND,
        started_ticks=111803,
        rss_bytes=3305 * PAGE_BYTES,
        caught_signals=8194,
        processor=0,
        exit_status=9,
    )


@pytest.fixture(params=[True, False], ids=["pidfd", "polling"])
def watcher(request: pytest.FixtureRequest) -> Iterator[ExitWatcher]:
    watcher = ExitWatcher(use_pidfd=request.param)
    yield watcher
    watcher.close()


def wait_for_one(watcher: ExitWatcher) -> Exited:
    """The one process that ended."""
    (exited,) = watcher.wait(PATIENCE_S)
    return exited


@pytest.mark.parametrize(("ending", "code"), [("exit 0", 0), ("signal 9", -9)])
def test_the_exit_code_is_read_before_the_parent_reaps(
    program: StartProgram, watcher: ExitWatcher, ending: str, code: int
) -> None:
    parent = program("parent_of_one.py", "late")
    child = int(parent.first_words)
    watcher.watch(child)
    before = time.monotonic_ns()
    parent.tell(ending)
    exited = wait_for_one(watcher)
    assert (exited.pid, exited.exit_code) == (child, code)
    assert before < exited.seen_ns <= time.monotonic_ns()
    assert watcher.wait(0) == []


def test_a_process_that_was_reaped_at_once_is_noticed_all_the_same(
    program: StartProgram, watcher: ExitWatcher
) -> None:
    """Its code is lost on kernels before 6.15, but it is never a wrong one."""
    parent = program("parent_of_one.py", "at_once")
    child = int(parent.first_words)
    watcher.watch(child)
    parent.tell("exit 3")
    assert parent.announcement() == "reaped"
    exited = wait_for_one(watcher)
    assert exited.pid == child
    assert exited.exit_code in (3, None)


def test_a_process_that_is_gone_already_is_reported_once_and_a_living_one_never(
    watcher: ExitWatcher,
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, os.getpid(), os.getpid()):
        watcher.watch(pid)
    exited = wait_for_one(watcher)
    assert (exited.pid, exited.exit_code) == (gone.pid, None)
    assert watcher.wait(0) == []


# What the kernel shows of blocked processes, and one look at many, stacks included.


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
