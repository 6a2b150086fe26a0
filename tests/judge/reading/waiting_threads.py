"""Processes whose threads wait for each other, as the kernel and py-spy show them."""

from __future__ import annotations

from typing import Any

import msgspec
from cases import IN_BARRIER, MAIN, SITE, STDLIB, look, rank, user

from lightning_hangcheck.judge.threads import Moment
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessLook,
    ThreadStack,
    ThreadState,
    WaitTarget,
)

FUTEX = 202
WAITS = rank(0, IN_BARRIER)
LIBRARY_WAIT = Frame("Condition.wait", f"{STDLIB}/threading.py", 327)
IN_FUTURE = (
    MAIN,
    user("prefetch", 30),
    Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451),
    LIBRARY_WAIT,
)
IN_QUEUE = (
    MAIN,
    user("next_batch", 31),
    Frame("Queue.get", f"{STDLIB}/queue.py", 171),
    LIBRARY_WAIT,
)
IN_JOIN = (MAIN, user("save", 32), Frame("Thread.join", f"{STDLIB}/threading.py", 1119))
IN_EXIT = (Frame("_shutdown", f"{STDLIB}/threading.py", 1590),)
IN_LOOP = (
    MAIN,
    user("read", 33),
    Frame("BaseEventLoop._run_once", f"{STDLIB}/asyncio/base_events.py", 1884),
    Frame("EpollSelector.select", f"{STDLIB}/selectors.py", 468),
)
POOL = (Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83),)
IN_FETCH = (*POOL, user("fetch", 8))
IN_PRODUCE = (user("produce", 7),)
IN_METRICS = (user("log_metrics", 5),)
IN_WANDB_READER = (Frame("read", f"{SITE}/wandb/sdk/reader.py", 5),)
SERVER = WaitTarget(call="recvfrom", kind="socket", name="10.0.0.1:443", connection=6)
TRACKER = WaitTarget(call="recvfrom", kind="socket", name="10.0.0.9:443", connection=5)
SELF_PIPE = WaitTarget(call="epoll_wait", kind="socket")
TIMED = WaitTarget(call="futex", kind="time")
ENDLESS = WaitTarget(call="futex", kind="futex", name="0x7f")


class Thread(msgspec.Struct):
    """A thread as it is in each sample.

    Attributes:
        wakes_ns: When it wakes, in each sample.
    """

    frames: tuple[Frame, ...]
    waits_for: tuple[WaitTarget, ...] = ()
    syscall: int | None = 0
    cpu: float = 0.0
    wakes_ns: tuple[int | None, ...] = (None, None, None)
    carried: int = 0


def sleeper(frames: tuple[Frame, ...], *wakes_ns: int) -> Thread:
    timed = (WaitTarget(call="clock_nanosleep", kind="time"),)
    return Thread(frames, timed, syscall=230, wakes_ns=wakes_ns)


def parked(frames: tuple[Frame, ...]) -> Thread:
    return Thread(frames, (ENDLESS,), syscall=FUTEX)


def process(main: Thread, *others: Thread, **fields: Any) -> ProcessLook:
    """A rank of pid 101 with these threads, their ids 101, 201, 202, ..."""
    plain = look(main.frames, pid=101, **fields)
    threads = [(101, main), *((201 + number, one) for number, one in enumerate(others))]
    samples = []
    for number, one in enumerate(plain.samples):
        assert one.kernel is not None
        assert one.stack is not None
        states = tuple(
            ThreadState(
                tid=tid,
                state="S",
                cpu_s=number * 1.1 * thread.cpu,
                syscall=thread.syscall,
                wakes_ns=thread.wakes_ns[number],
                waits_for=tuple(
                    msgspec.structs.replace(target, carried_bytes=number * thread.carried)
                    for target in thread.waits_for
                ),
            )
            for tid, thread in threads
        )
        stacks = tuple(ThreadStack(tid=tid, frames=thread.frames) for tid, thread in threads)
        cpu_s = sum(state.cpu_s for state in states)
        kernel = msgspec.structs.replace(one.kernel, threads=states, cpu_s=cpu_s)
        stack = msgspec.structs.replace(one.stack, threads=stacks)
        samples.append(msgspec.structs.replace(one, kernel=kernel, stack=stack))
    return msgspec.structs.replace(plain, samples=tuple(samples))


def ends(main: Thread, *others: Thread) -> list[str]:
    """Functions in which the wait ends, as the newest sample has it."""
    chain = Moment(process(main, *others).samples[-1], None).chain
    assert chain is not None
    return [end.frames[-1].function for end in chain.ends]
