"""Threads beside a rank's main one that may yet call what others wait for, and what for each waits.

Pure. An asynchronous save, a helper that first waits for a child, a queue or a sleep: each may make
the very collective that a rank seems to leave out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import Frame, ThreadState, WaitTarget
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.waits.torch_waits import waits_for_ranks
from lightning_hangcheck.reading.waits.wait_chain import (
    chain_from,
    limited_in_time,
    may_help,
    own_targets,
    slept_anew,
)

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessLook, Sample, ThreadStack


class WaitEnd(Struct, frozen=True):
    """A thread in which the wait of a late caller ends, mostly itself.

    Attributes:
        state: As the kernel saw it last.
        named: What it waits for outside of its process's memory.
        ticks: It slept twice at one place until different moments: it woke since, and went back.
        for_ranks: It waits in a collective.
    """

    state: ThreadState
    named: tuple[WaitTarget, ...] = ()
    ticks: bool = False
    for_ranks: bool = False

    @property
    def runs(self) -> bool:
        """Whether it was running, or ready to."""
        return self.state.state == "R"

    @property
    def limited(self) -> bool:
        """Whether its wait ends by itself at a time."""
        return limited_in_time(self.state)


class LateCaller(Struct, frozen=True):
    """A thread in the user's code that is in no collective.

    Attributes:
        frames: Of it, outermost first.
        ends: None where nobody is left to end its wait: it calls nothing any more.
    """

    frames: tuple[Frame, ...]
    ends: tuple[WaitEnd, ...]


def late_callers(look: ProcessLook) -> tuple[LateCaller, ...]:
    """Return the threads beside the main one that may still come to a call.

    Args:
        look: At a rank's own process.
    """
    samples = [one for one in look.samples if one.stack is not None and one.kernel is not None]
    if not samples:
        return ()
    newest, before = samples[-1], samples[-2] if samples[1:] else None
    beside = newest.stack.threads[1:] if newest.stack is not None else ()
    return tuple(
        LateCaller(thread.frames, _ends(thread, newest, before))
        for thread in beside
        if may_help(thread)
        and users_place(thread.frames) is not None
        and not waits_for_ranks(thread.frames)
    )


def _ends(thread: ThreadStack, newest: Sample, before: Sample | None) -> tuple[WaitEnd, ...]:
    states = _states(newest)
    return tuple(
        WaitEnd(
            states[end.tid],
            own_targets(end, states[end.tid]),
            ticks=before is not None and _ticks(end, newest, before),
            for_ranks=waits_for_ranks(end.frames),
        )
        for end in chain_from(newest, thread).ends
        if end.tid in states
    )


def _ticks(end: ThreadStack, newest: Sample, before: Sample) -> bool:
    threads = before.stack.threads if before.stack is not None else ()
    same = any(
        one.tid == end.tid and users_place(one.frames) == users_place(end.frames) for one in threads
    )
    then, now = _states(before).get(end.tid), _states(newest)[end.tid]
    return same and then is not None and slept_anew(then, now)


def _states(sample: Sample) -> dict[int | None, ThreadState]:
    return {one.tid: one for one in sample.kernel.threads} if sample.kernel is not None else {}
