"""Threads of one process that stand in locks: could any thread still release one?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.code_owner import is_ours, is_standard
from lightning_hangcheck.model.evidence import ThreadStack
from lightning_hangcheck.reading.place import users_place

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import Frame, Sample

JOINS = ("_shutdown", "join", "_wait_for_tstate_lock")
"""Functions of threading.py that wait for threads to end: they release nothing before."""


class LockedThreads(Struct, frozen=True):
    """Threads that wait for a lock, the main thread first, and whether none is left to release it.

    A thread that runs the interpreter's own library alone (a pool's idle worker) holds no lock that
    anybody else wants.
    """

    threads: tuple[ThreadStack, ...]
    all_locked: bool

    @property
    def places(self) -> tuple[Frame, ...]:
        """Lines of the user's code at which they stand, each once."""
        found = (users_place(thread.frames) for thread in self.threads)
        return tuple(dict.fromkeys(place for place in found if place is not None))


def read_locks(view: RankView) -> LockedThreads | None:
    """Tell which threads of a rank stand in locks, by its two newest samples.

    Returns:
        None where the main thread is in no lock and waits for no thread that is, where one thread
        waits and another may release its lock, or where the samples don't show it twice.
    """
    own = view.own_process
    samples = [
        sample
        for sample in (own.samples if own is not None else ())
        if sample.kernel is not None and sample.stack is not None
    ][-2:]
    if len(samples) < 2:
        return None
    earlier, newest = (_read(sample) for sample in samples)
    if earlier is None or newest is None:
        return None
    same = {thread.tid for thread in earlier.threads} == {t.tid for t in newest.threads}
    return newest if same else None


def _read(sample: Sample) -> LockedThreads | None:
    stack, kernel = sample.stack, sample.kernel
    if stack is None or kernel is None or not stack.threads:
        return None
    endless = {
        thread.tid
        for thread in kernel.threads
        if any(target.kind == "futex" for target in thread.waits_for)
    }
    locked = tuple(one for one in stack.threads if one.tid in endless and _in_lock(one))
    main = stack.threads[0]
    if not locked or (main not in locked and not _joins(main)):
        return None
    others = [one for one in stack.threads if one not in locked and not _harmless(one)]
    if len(locked) == 1 and others:
        return None
    return LockedThreads(locked, all_locked=not others)


def _in_lock(thread: ThreadStack) -> bool:
    """The interpreter's own library takes locks to wait for news: that is no wait for a lock."""
    return thread.takes_lock and bool(thread.frames) and not is_standard(thread.frames[-1].file)


def _harmless(thread: ThreadStack) -> bool:
    """Ours, or one that runs nobody's code; a library's thread may hold a library's lock."""
    frames = thread.frames
    ours = any(is_ours(frame.file) for frame in frames)
    return ours or _joins(thread) or all(is_standard(frame.file) for frame in frames)


def _joins(thread: ThreadStack) -> bool:
    innermost = thread.frames[-1] if thread.frames else None
    return (
        innermost is not None
        and innermost.file.endswith("/threading.py")
        and innermost.function.rpartition(".")[2] in JOINS
    )
