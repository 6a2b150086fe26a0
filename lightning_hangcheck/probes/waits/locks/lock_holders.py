"""Which thread is inside the ``with`` block of the very lock that a thread takes?

The source shows which lock a line takes, and which ones a call is inside of. A name of the file's
own is one object; what begins with a variable of a call's own is known by that one's address. Locks
of other processes, semaphores and conditions that a thread waits for leave it open who holds them.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.model.naming.code_owner import is_standard
from lightning_hangcheck.probes.proc.process_tree import began_s
from lightning_hangcheck.probes.source_code.code_notes import source_tree
from lightning_hangcheck.probes.source_code.held_locks import lets_go, lock_taken, locks_held
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Collection, Iterator, Sequence

    from lightning_hangcheck.model.evidence import Frame, ProcessStack, ThreadStack
    from lightning_hangcheck.probes.source_code.held_locks import NamedLock

    AddressOf = Callable[[int | None, int, Frame, str], str]

THREADING = "/threading.py"
ENTERS = "__enter__"
SOURCE_LIMIT_S = 0.5
DEEPEST = 32
"""Calls outwards in which the holder of a lock is looked for."""


class Place(NamedTuple):
    """A call, and the lock that its line takes or is inside of.

    Attributes:
        tid: Of its thread.
        depth: How many calls are outside of it.
    """

    tid: int | None
    depth: int
    frame: Frame
    lock: NamedLock


class AwaitedLock(NamedTuple):
    """A lock that a thread takes, and the calls that are inside of one by that name."""

    taken: Place
    held: tuple[Place, ...]

    @property
    def by_variables(self) -> bool:
        """Whether only the values of variables tell that it is one lock."""
        return not self.taken.lock.of_file

    def holder(self, address_of: AddressOf) -> int | None:
        """Return the one thread that has it; None where that is not known.

        Args:
            address_of: Gives where the object of a call's variable lives; empty where not known.
        """
        places = [self.taken, *self.held]
        if self.by_variables:
            at = [address_of(one.tid, one.depth, one.frame, one.lock.root) for one in places]
            places = [one for one, address in zip(places, at, strict=True) if address == at[0]]
            places = places if at[0] else []
        holders = {one.tid for one in places[1:]}
        return holders.pop() if len(holders) == 1 else None


def awaited_locks(
    stack: ProcessStack, waiting: Collection[int], time_limit_s: float
) -> dict[int, AwaitedLock]:
    """Find the threads that take a lock by a name by which a call is inside of one.

    Args:
        stack: Of a process.
        waiting: Threads that wait in their process's own memory, without a time limit.
        time_limit_s: Seconds.

    Returns:
        By kernel thread id; nothing where the source is not read in time.
    """
    taking = [one for one in stack.threads if one.tid in waiting and _takes(one)]
    found: list[dict[int, AwaitedLock]] = []
    if taking:
        since_s = began_s(stack.pid)
        with suppress(NoAnswer):
            limit_s = min(time_limit_s, SOURCE_LIMIT_S)
            found.append(within(limit_s, lambda: _all_awaited(taking, stack.threads, since_s)))
    return found[0] if found else {}


def _takes(thread: ThreadStack) -> bool:
    """Whether it takes a lock, not one behind which Python's own library waits for news."""
    if not thread.frames:
        return False
    return _enters(thread) or (thread.takes_lock and not thread.frames[-1].file.endswith(THREADING))


def _enters(thread: ThreadStack) -> bool:
    """Whether it is in a ``with`` of a condition, which enters its lock."""
    inner = thread.frames[-1]
    named = inner.function.rpartition(".")[2] == ENTERS
    return len(thread.frames) > 1 and named and inner.file.endswith(THREADING)


def _all_awaited(
    taking: Sequence[ThreadStack], threads: Sequence[ThreadStack], unchanged_since_s: float
) -> dict[int, AwaitedLock]:
    found: dict[int, AwaitedLock] = {}
    held: dict[str, list[Place]] = {}
    for thread in taking:
        depth = len(thread.frames) - (2 if _enters(thread) else 1)
        frame = thread.frames[depth]
        tree = source_tree(frame.file, unchanged_since_s)
        lock = lock_taken(tree, frame) if tree is not None else None
        if tree is None or lock is None or thread.tid is None:
            continue
        if frame.file not in held:
            held[frame.file] = [*_held_in(tree, frame.file, threads)]
        same = tuple(one for one in held[frame.file] if one.lock == lock)
        if same:
            found[thread.tid] = AwaitedLock(Place(thread.tid, depth, frame, lock), same)
    return found


def _held_in(tree: ast.Module, file: str, threads: Sequence[ThreadStack]) -> Iterator[Place]:
    """Find what all threads have taken by the source of one file."""
    held = cache(lambda frame: tuple(locks_held(tree, frame)))
    released = cache(lambda frame, lock: lets_go(tree, frame, lock))
    for thread in threads:
        for depth, frame in list(enumerate(thread.frames))[-DEEPEST:]:
            if frame.file != file or not held(frame) or _waits_for_news(thread.frames[depth:]):
                continue
            further_in = [one for one in thread.frames[depth:] if one.file == file]
            for lock in held(frame):
                if not any(released(one, lock) for one in further_in):
                    yield Place(thread.tid, depth, frame, lock)


def _waits_for_news(frames: Sequence[Frame]) -> bool:
    """Whether a call with a lock waits behind it, and so may have given it back for that while.

    An event, a future, or a queue of Python's library waits behind a lock of its own.

    Args:
        frames: The call, and those within it.
    """
    of_library = is_standard(frames[0].file)
    return any(
        _may_be_condition(called) and (of_library or not is_standard(caller.file))
        for caller, called in pairwise(frames)
    )


def _may_be_condition(frame: Frame) -> bool:
    """Whether it is a condition's wait: before Python 3.11 the class is not known."""
    owner, _, name = frame.function.rpartition(".")
    known = owner and not owner.endswith("Condition")
    return frame.file.endswith(THREADING) and name in ("wait", "wait_for") and not known
