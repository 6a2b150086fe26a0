"""Signs of life of real processes in each state."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

from processes import until

from lightning_hangcheck.look.proc import Vitals, io_bytes, main_thread_cpu_s, vitals

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


def test_a_pid_that_was_given_to_another_process_is_told_apart() -> None:
    ours = vitals(os.getpid())
    assert ours.is_still(ours.started_ticks)
    assert not ours.is_still(ours.started_ticks + 1)
    assert ours.is_still(0)  # a start that was never learnt tells nothing apart


def test_a_process_that_cannot_be_read_is_not_taken_for_another() -> None:
    unreadable = Vitals(state="?", cpu_s=0.0, started_ticks=0)
    assert unreadable.is_still(4711)


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
