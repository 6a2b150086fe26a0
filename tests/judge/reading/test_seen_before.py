"""On a busy machine a look may fail in part; what was known of a thread that stands still stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cases import MAIN, NOW_NS, STDLIB, user
from msgspec.structs import replace

from lightning_hangcheck.judge.seen_before import with_what_was_seen
from lightning_hangcheck.judge.waits import steady_targets
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessLook,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
    WaitTarget,
)

if TYPE_CHECKING:
    from collections.abc import Callable

IN_FUTURE = (
    MAIN,
    Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451),
    Frame("Condition.wait", f"{STDLIB}/threading.py", 327),
)
IN_OPEN = (Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83), user("read_pipe", 9))
FIFO = WaitTarget(call="openat", kind="fifo", name="/data/a.pipe")
FUTEX = WaitTarget(call="futex", kind="futex", name="0x7f")
BEFORE = Sample(
    taken_ns=NOW_NS,
    kernel=ProcessState(
        pid=1,
        parent_pid=0,
        state="S",
        started_ticks=1,
        cpu_s=0.0,
        threads=(
            ThreadState(tid=1, state="S", cpu_s=0.0, syscall=202, waits_for=(FUTEX,)),
            ThreadState(tid=2, state="S", cpu_s=0.0, syscall=257, waits_for=(FIFO,)),
        ),
    ),
    stack=ProcessStack(
        pid=1,
        source="py-spy",
        threads=(
            ThreadStack(tid=1, frames=IN_FUTURE, name="MainThread"),
            ThreadStack(tid=2, frames=IN_OPEN, name="reader"),
        ),
    ),
)


def after(change: Callable[[Sample], Sample]) -> tuple[WaitTarget, ...]:
    """What the process is seen to wait for, a second later, in a sample that lacks something."""
    later = change(replace(BEFORE, taken_ns=NOW_NS + 10**9))
    samples = (BEFORE, with_what_was_seen(later, BEFORE))
    return steady_targets(ProcessLook(pid=1, role="rank", samples=samples))


def unnamed(sample: Sample) -> Sample:
    assert sample.kernel is not None
    main, helper = sample.kernel.threads
    nameless = replace(helper, waits_for=(replace(FIFO, name=""),))
    return replace(sample, kernel=replace(sample.kernel, threads=(main, nameless)))


def by_signal(sample: Sample) -> Sample:
    """As faulthandler writes it: no classes, no ids but the main thread's."""
    assert sample.stack is not None
    main, helper = sample.stack.threads
    bare = tuple(replace(one, function=one.function.rpartition(".")[2]) for one in main.frames)
    threads = (replace(main, frames=bare), replace(helper, tid=None, name="0x7f6033fff6c0"))
    return replace(sample, stack=replace(sample.stack, source="faulthandler", threads=threads))


def without_stack(sample: Sample) -> Sample:
    return replace(sample, stack=None)


def at_another_line(sample: Sample) -> Sample:
    assert sample.stack is not None
    main, helper = sample.stack.threads
    moved = replace(helper, frames=(*IN_OPEN[:1], user("read_pipe", 12)))
    return replace(sample, stack=replace(sample.stack, threads=(main, moved)))


def test_a_name_that_was_not_read_this_time_is_known_from_before() -> None:
    assert after(unnamed) == (FIFO,)


def test_a_stack_without_ids_is_recognised_by_its_calls() -> None:
    assert after(by_signal) == (FIFO,)


def test_a_look_without_stacks_does_not_hide_which_thread_is_waited_for() -> None:
    first = replace(BEFORE, taken_ns=NOW_NS - 10**9)
    samples = (first, BEFORE, without_stack(replace(BEFORE, taken_ns=NOW_NS + 10**9)))
    assert steady_targets(ProcessLook(pid=1, role="rank", samples=samples)) == (FIFO,)


def test_a_thread_that_went_on_keeps_nothing() -> None:
    def moved(sample: Sample) -> Sample:
        return at_another_line(unnamed(sample))

    assert after(moved) == ()


def test_the_socket_by_which_an_event_loop_wakes_itself_stays_without_a_name() -> None:
    server = WaitTarget(call="epoll_wait", kind="socket", name="10.0.0.1:443", carried_bytes=9)
    itself = WaitTarget(call="epoll_wait", kind="socket")

    def waiting_for(*targets: WaitTarget) -> Sample:
        assert BEFORE.kernel is not None
        helper = replace(BEFORE.kernel.threads[1], waits_for=targets)
        threads = (BEFORE.kernel.threads[0], helper)
        return replace(BEFORE, kernel=replace(BEFORE.kernel, threads=threads))

    later = waiting_for(replace(server, carried_bytes=10), itself)
    assert with_what_was_seen(later, waiting_for(server, itself)) == later
