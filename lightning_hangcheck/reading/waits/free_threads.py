"""Threads of a process that may act whatever its main thread waits for. Pure.

Whoever waits at a process's socket or pipe, or for a lock that it holds, can be helped by any of
its threads: one that sleeps may answer once it wakes. So no circle through such a process is closed
while one of them is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import ThreadState
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.waits.torch_waits import waits_for_ranks
from lightning_hangcheck.reading.waits.wait_chain import (
    is_pending_timer,
    may_help,
    slept_anew,
    wait_chain,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.evidence import ProcessLook, Sample, ThreadStack


class FreeThread(Struct, frozen=True):
    """A thread that runs the user's code and is not known to wait for what only others bring.

    Attributes:
        state: As the kernel saw it last.
        timer: It is one of Python's timers, which will call what the user gave it.
        ticks: It slept twice at one place until different moments: it woke since, and what it then
            did ended nobody's wait.
        for_ranks: It waits in a collective.
    """

    state: ThreadState
    timer: bool = False
    ticks: bool = False
    for_ranks: bool = False

    @property
    def runs(self) -> bool:
        """Whether it was running, or ready to."""
        return self.state.state == "R"

    @property
    def sleeps(self) -> bool:
        """Whether it waits for nothing but a time, and was not seen to do so again and again.

        What one of Python's timers calls then makes no collectives, as far as anybody has seen.
        """
        kinds = {one.kind for one in self.state.waits_for}
        return kinds == {"time"} and not self.ticks and not self.timer


def free_threads(look: ProcessLook) -> tuple[FreeThread, ...]:
    """Return the threads beside those through which the main thread's wait leads.

    A library's own threads are left out: such a one does its library's work, and nearly every
    process has some. So are those that wait without a time limit for news of their own process,
    which another of its threads would have to bring.
    """
    samples = [one for one in look.samples if one.stack is not None and one.kernel is not None]
    if not samples:
        return ()
    before = {tid: slept for tid, _, slept in _beside_main(samples[-2])} if samples[1:] else {}
    return tuple(
        FreeThread(
            slept.state,
            timer=is_pending_timer(stack, {tid: slept.state}),
            ticks=_ticks(before.get(tid), slept),
            for_ranks=waits_for_ranks(stack.frames),
        )
        for tid, stack, slept in _beside_main(samples[-1])
        if not _waits_for_own_news(slept.state)
    )


class _Standing(Struct, frozen=True):
    place: object
    state: ThreadState


def _beside_main(sample: Sample) -> Iterator[tuple[int, ThreadStack, _Standing]]:
    """The threads in the user's code that the main thread's wait does not lead through."""
    threads = sample.stack.threads[1:] if sample.stack is not None else ()
    states = sample.kernel.threads if sample.kernel is not None else ()
    by_tid = {one.tid: one for one in states}
    chain = wait_chain(sample)
    waited_for = {one.tid for one in chain.threads} if chain is not None else set()
    for thread in threads:
        if thread.tid not in by_tid or thread.tid in waited_for or not may_help(thread):
            continue
        place = users_place(thread.frames)
        if place is not None or is_pending_timer(thread, by_tid):
            yield thread.tid, thread, _Standing(place, by_tid[thread.tid])


def _ticks(before: _Standing | None, now: _Standing) -> bool:
    same = before is not None and before.place == now.place
    return same and before is not None and slept_anew(before.state, now.state)


def _waits_for_own_news(state: ThreadState) -> bool:
    kinds = {target.kind for target in state.waits_for}
    return kinds == {"futex"}
