"""What a sample lacks of a thread that stands where it stood, taken from the sample before. Pure.

On a busy machine a look may fail in part: py-spy is late, and the rank's own stacks come without
the kernel's ids and without classes; a name in the process's memory is not read in time. What is
known of a thread that has not moved since must not come and go with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.model.evidence import (
        Sample,
        ThreadStack,
        ThreadState,
        WaitTarget,
    )

Calls = tuple[tuple[str, str, int], ...]


def with_what_was_seen(newest: Sample, before: Sample) -> Sample:
    """Complete a sample by the one before it of the same process.

    Args:
        newest: Just taken.
        before: Taken before, itself completed so.
    """
    if newest.stack is None or before.stack is None:
        return newest
    if newest.stack.source != before.stack.source:
        known = {_calls(one): one for one in before.stack.threads}
        threads = tuple(_recognised(one, known.get(_calls(one))) for one in newest.stack.threads)
        newest = replace(newest, stack=replace(newest.stack, threads=threads))
    return _with_names(newest, before)


def _recognised(thread: ThreadStack, known: ThreadStack | None) -> ThreadStack:
    """Return the thread as it was seen before, if it is that one, for all that may have changed."""
    if known is None or thread.tid not in (None, known.tid):
        return thread
    return replace(known, active=thread.active, owns_gil=thread.owns_gil)


def _calls(thread: ThreadStack) -> Calls:
    """Where a thread stands, by what all sources of stacks tell: not all know classes."""
    return tuple(
        (frame.function.rpartition(".")[2], frame.file, frame.line) for frame in thread.frames
    )


def _with_names(newest: Sample, before: Sample) -> Sample:
    if newest.kernel is None or before.kernel is None:
        return newest
    old = {state.tid: state for state in before.kernel.threads}
    still = _standing_still(newest, before)
    threads = tuple(
        _named(state, old[state.tid]) if state.tid in still and state.tid in old else state
        for state in newest.kernel.threads
    )
    return replace(newest, kernel=replace(newest.kernel, threads=threads))


def _standing_still(newest: Sample, before: Sample) -> Collection[int]:
    """Threads that stand at the same lines in both samples."""
    both = (newest.stack, before.stack)
    now, then = (
        {(one.tid, one.frames) for one in stack.threads} if stack is not None else set()
        for stack in both
    )
    return {tid for tid, frames in now & then if tid is not None and frames}


def _named(state: ThreadState, before: ThreadState) -> ThreadState:
    """Name what a thread waits for where it is in the very call of before.

    Only of a call that waits for one thing: the sockets by which event loops wake themselves never
    have a name.
    """
    if (state.syscall, state.arguments) != (before.syscall, before.arguments):
        return state
    now, then = _all_but_times(state), _all_but_times(before)
    if len(now) != 1 or len(then) != 1 or now[0].name or now[0].call != then[0].call:
        return state
    found = replace(then[0], holders=now[0].holders or then[0].holders)
    others = (one for one in state.waits_for if one is not now[0])
    return replace(state, waits_for=(found, *others))


def _all_but_times(state: ThreadState) -> list[WaitTarget]:
    return [one for one in state.waits_for if one.kind != "time"]
