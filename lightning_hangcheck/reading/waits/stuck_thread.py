"""In which thread of a rank its wait ends, and which thread keeps all others from running. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.activity.process_activity import (
    BUSY_SHARE,
    is_starved,
    thread_shares,
)
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.waits.kernel_targets import targets_of
from lightning_hangcheck.reading.waits.torch_waits import waits_for_ranks
from lightning_hangcheck.reading.waits.wait_chain import (
    awaits_executor,
    in_event_loop,
    joins,
    wait_chain,
)
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.evidence import (
        ProcessLook,
        ProcessState,
        Sample,
        ThreadStack,
    )

STALE_S = 2.0
"""The pulse thread runs every 0.5 s; four times that shows that it cannot."""


def stuck_thread(look: ProcessLook) -> ThreadStack | None:
    """Return the thread in which the main thread's wait ends.

    Of several, one that waits for something that has a name, then one that waits for other ranks,
    one that computes, and one that stands still elsewhere. One that sleeps a moment at a time ticks
    for itself: it is none, nor is an event loop without anything to do. Where none is left to end
    the wait, the one that is joined, or that the work was given to.

    Returns:
        None where that is the main thread itself, or nothing tells.
    """
    samples = [one for one in look.samples if one.kernel is not None and one.stack is not None][-2:]
    chain = wait_chain(samples[-1]) if len(samples) == 2 else None
    if chain is None or not chain.leads_on:
        return None
    earlier, newest = samples
    if not chain.ends and (joins(chain.main) or awaits_executor(chain.main)):
        given = (one for one in chain.threads[1:] if not in_event_loop(one.frames))
        return next((one for one in given if users_place(one.frames)), None)
    signs: Sequence[Callable[[Sample, Sample, ThreadStack], bool]] = (
        _waits_for_named,
        _waits_for_ranks,
        _computes,
        _stands_still,
    )
    others = [end for end in chain.ends if end is not chain.main and end.tid is not None]
    found = (end for sign in signs for end in others if sign(earlier, newest, end))
    return next(found, None)


def lock_keeper(look: ProcessLook, beat: Beat | None) -> ThreadStack | None:
    """Return the thread that keeps the interpreter lock, the main one included.

    A thread in Python code gives it up when another asks; one in a C call may not, and then the
    page's pulse stands still. Without a page, a thread that has it twice while it sleeps keeps it.
    One that only gets no processor would go on, and whether it gave the lock up then nobody knows.
    """
    samples = [one for one in look.samples if one.kernel is not None and one.stack is not None][-2:]
    if len(samples) < 2:
        return None
    earlier, newest = samples
    before, keeper = _owner(earlier), _owner(newest)
    if keeper is None or _gets_no_processor(earlier, newest):
        return None
    if beat is not None and beat.pulse_ns > 0:
        stale = newest.taken_ns - beat.pulse_ns > STALE_S * NANOSECONDS
        return keeper if stale else None
    same = before is not None and (before.tid, before.frames) == (keeper.tid, keeper.frames)
    return keeper if same and not _computes(earlier, newest, keeper) else None


def _gets_no_processor(earlier: Sample, newest: Sample) -> bool:
    """Of its main thread the kernel tells that; others starve where that one does."""
    seconds = (newest.taken_ns - earlier.taken_ns) / NANOSECONDS
    if earlier.kernel is None or newest.kernel is None:
        return False
    return is_starved(earlier.kernel, newest.kernel, seconds)


def _owner(sample: Sample) -> ThreadStack | None:
    threads = sample.stack.threads if sample.stack is not None else ()
    return next((one for one in threads if one.owns_gil), None)


def _waits_for_named(earlier: Sample, newest: Sample, thread: ThreadStack) -> bool:
    before, now = (
        {(target.kind, target.name) for tid, target in targets_of(sample) if tid == thread.tid}
        for sample in (earlier, newest)
    )
    return any(name for _, name in before & now)


def _waits_for_ranks(earlier: Sample, newest: Sample, thread: ThreadStack) -> bool:
    return waits_for_ranks(thread.frames)


def _computes(earlier: Sample, newest: Sample, thread: ThreadStack) -> bool:
    shares = thread_shares(earlier, newest)
    return thread.tid is not None and shares.get(thread.tid, 0.0) >= BUSY_SHARE


def _stands_still(earlier: Sample, newest: Sample, thread: ThreadStack) -> bool:
    same = any(
        one.tid == thread.tid and one.frames == thread.frames
        for one in (earlier.stack.threads if earlier.stack is not None else ())
    )
    return (
        same
        and not in_event_loop(thread.frames)
        and _wakes(earlier.kernel, thread) == _wakes(newest.kernel, thread)
    )


def _wakes(kernel: ProcessState | None, thread: ThreadStack) -> int | None:
    states = kernel.threads if kernel is not None else ()
    return next((one.wakes_ns for one in states if one.tid == thread.tid), None)
