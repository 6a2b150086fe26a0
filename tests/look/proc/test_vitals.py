"""Signs of life of real processes in each state."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import PATIENCE_S, PROGRAMS, until

from lightning_hangcheck.look.proc import (
    UNREADABLE,
    io_bytes,
    main_thread_cpu_s,
    slept_s,
    vitals,
)
from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.machine import (
    PAGE_BYTES,
    TICKS_PER_SECOND,
    StatLine,
    parse_stat,
)

if TYPE_CHECKING:
    from processes import StartProgram


def state_of(pid: int) -> str | None:
    seen = vitals(pid)
    return None if seen is None else seen.state


def test_a_sleeping_process_is_seen_sleeping_whatever_it_calls_itself(
    program: StartProgram,
) -> None:
    running = program("sleeping.py", "a) R 1 (b")
    until(lambda: state_of(running.pid) == "S", "it to sleep")


def test_a_busy_process_uses_processor_time_and_its_main_thread_does(program: StartProgram) -> None:
    running = program("busy_loop.py")
    before = vitals(running.pid).cpu_s
    until(lambda: vitals(running.pid).cpu_s > before + 0.05, "processor time to grow")
    assert main_thread_cpu_s(running.pid) > before
    until(lambda: slept_s(running.pid) in (0.0, None), "the loop to be seen running")


def test_a_stopped_process_is_seen_stopped(program: StartProgram) -> None:
    running = program("stopping_itself.py")
    until(lambda: state_of(running.pid) == "T", "it to stop")


def test_an_ended_process_is_a_zombie_until_reaped_and_gone_afterwards(
    program: StartProgram,
) -> None:
    running = program("parent_of_one.py", "late")
    child = int(running.first_words)
    running.tell("exit 0")
    assert running.announcement() == "zombie"
    assert state_of(child) == "Z"
    running.tell("reap")
    assert running.announcement() == "reaped"
    assert vitals(child) is None
    assert main_thread_cpu_s(child) is None
    assert io_bytes(child) is None
    assert slept_s(child) is None


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
    assert seen is not None
    assert seen.state == "?"


def test_bytes_read_are_counted() -> None:
    read_before, written_before = io_bytes(os.getpid())
    reader, writer = os.pipe()
    os.write(writer, b"x" * 5000)
    os.read(reader, 5000)
    os.close(reader)
    os.close(writer)
    read_after, written_after = io_bytes(os.getpid())
    assert read_after - read_before >= 5000
    assert written_after - written_before >= 5000


def test_the_sleep_of_a_thread_is_not_that_of_the_main_one(program: StartProgram) -> None:
    """Which serves others and wakes twenty times a second, as that of an actor of Ray does."""
    actor = program(PROGRAMS / "site-packages" / "serving_actor.py", "training_in_thread", "train")
    stack, _ = python_stacks(actor.pid, None, PATIENCE_S)
    assert stack is not None
    trains = next(one.tid for one in stack.threads if "stand_still" in str(one.frames))
    if slept_s(actor.pid, trains) is None:
        pytest.skip("this kernel does not show when a thread last ran")
    until(lambda: (slept_s(actor.pid, trains) or 0.0) > 0.5, "the thread to have slept")
    assert (slept_s(actor.pid) or 0.0) < 0.5


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor alone")
def test_one_that_is_woken_on_another_processor_has_not_slept_since_the_machine_began(
    program: StartProgram,
) -> None:
    running = program("changing_processors.py")
    assert max(slept_s(running.pid) or 0.0 for _ in range(20_000)) < 30.0


# fields 3 to 52 of a process that was killed by SIGKILL (exit status 9)
FIELDS = (
    "Z 55 55 57 0 -1 4194304 1931 0 1 0 130 27 0 0 20 0 2 0 111803 93368320 3305 "
    "18446744073709551615 1 2 3 0 0 0 0 16781318 8194 0 0 0 17 0 0 0 0 0 0 4 5 6 7 8 9 10 9"
)


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


@pytest.mark.parametrize("line", [b"", b"4711", b"4711 (x", b"4711 (x) S 1 2"])
def test_a_torn_line_is_an_error_not_a_wrong_answer(line: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        parse_stat(line)
