"""Whose bytes show that a rank gets on: those of threads that could end its wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_LOAD, NOW_NS, SECOND, sample, user, waiting_for
from msgspec.structs import replace

from lightning_hangcheck.model.evidence import ProcessLook, ThreadStack, ThreadState
from lightning_hangcheck.reading.activity.rank_activity import read_process_activity

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import Sample

PID = 100
HELPER = 300
FULL_PIPE = waiting_for("pipe", "write", "pipe:[9]", 700)
FOR_CHILD = waiting_for("process", "wait4", "700")
REMOTE = waiting_for("socket", "recvfrom", "10.0.0.1:443")
MANY = 1_000_000


def seen(number: int, *, main: int, helper: int | None, **state: Any) -> Sample:
    """A look after so many seconds: each of main thread and helper moved so many bytes a second.

    The process moved a million a second: its count has what its children read.
    """
    state = {"state": "S", **state}
    one = sample(IN_LOAD, NOW_NS + number * SECOND, pid=PID, cpu_s=0, read_bytes=0, **state)
    assert one.kernel is not None
    assert one.stack is not None
    threads = [replace(thread, moved_bytes=0) for thread in one.kernel.threads]
    threads[0] = replace(threads[0], moved_bytes=number * main)
    if helper is not None:
        moved = number * helper
        threads.append(ThreadState(tid=HELPER, state="S", cpu_s=0, moved_bytes=moved))
    stacks = (*one.stack.threads, ThreadStack(tid=HELPER, frames=(user("monitor", 61),)))
    kernel = replace(one.kernel, threads=tuple(threads), read_bytes=number * MANY)
    return replace(one, kernel=kernel, stack=replace(one.stack, threads=stacks))


def activity(*, main: int = 0, helper: int | None = 0, **state: Any) -> str:
    samples = tuple(seen(number, main=main, helper=helper, **state) for number in range(3))
    return read_process_activity(ProcessLook(pid=PID, role="rank", samples=samples)).activity


@pytest.mark.parametrize("syscall", [1, 35])
def test_what_children_read_is_nobodys_progress(syscall: int) -> None:
    """A thread that runs a program every second, beside a main thread in write or in a sleep."""
    assert activity(syscall=syscall) == "idle"


def test_what_the_main_thread_writes_is_progress() -> None:
    assert activity(main=5_000, syscall=1, **FULL_PIPE) == "moving"


def test_a_helper_counts_where_it_could_end_the_wait() -> None:
    """Another process of this machine may wait for what it gives; a remote end does not."""
    for waits in (FULL_PIPE, FOR_CHILD):
        assert activity(helper=MANY, **waits) == "moving"
        assert activity(helper=100, **waits) == "idle"
    assert activity(helper=MANY, **REMOTE) == "idle"


def test_where_a_thread_has_ended_or_is_not_counted_the_process_counts() -> None:
    gone = [seen(0, main=0, helper=0), seen(1, main=0, helper=None), seen(2, main=0, helper=None)]
    look = ProcessLook(pid=PID, role="rank", samples=tuple(gone))
    assert read_process_activity(look).activity == "moving"
    uncounted = [
        replace(
            one,
            kernel=replace(
                one.kernel, threads=tuple(replace(t, moved_bytes=None) for t in one.kernel.threads)
            ),
        )
        for one in (seen(number, main=0, helper=0) for number in range(3))
        if one.kernel is not None
    ]
    look = ProcessLook(pid=PID, role="rank", samples=tuple(uncounted))
    assert read_process_activity(look).activity == "moving"
