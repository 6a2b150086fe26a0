"""Through which threads of a process its main thread's wait leads, and where that ends. Pure.

A thread in a lock, an event, a queue, a future, a join or an event loop waits for other threads of
its own process, whatever the kernel calls it: the memory that it waits on is nobody else's. So the
wait leads on to the threads that could end it, and from there to their file, socket, child or
collective. No table of functions says which waits these are: the kernel shows a futex, and the
innermost frame is the interpreter's own library, or its line takes a lock.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from lightning_hangcheck.model.evidence import TargetKind, ThreadStack
from lightning_hangcheck.model.naming.code_owner import is_ours, is_standard, owner_of
from lightning_hangcheck.reading.knowledge.frames import meanings
from lightning_hangcheck.reading.waits.torch_waits import holds, waits_for_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lightning_hangcheck.model.evidence import (
        Frame,
        Sample,
        ThreadState,
        WaitTarget,
    )

FUTEXES = frozenset({202, 98, 449, 455})
"""futex on x86-64 and arm64, then futex_waitv and futex_wait (arch/*/syscall*.tbl)."""
IN_MEMORY: frozenset[TargetKind] = frozenset({"futex", "time"})
"""What names nobody: a word of the process's own memory, and a time limit."""
WRITES = frozenset({"write", "writev", "pwrite64", "sendto", "sendmsg"})
EVENTS = ("eventfd:[", "anon_inode:[eventfd]", "anon_inode:[timerfd]")
"""By which the loop of a library in C++ is woken, as that of an actor of Ray is by its calls."""
JOINS = ("join", "_shutdown")
TAKE_LOCKS = ("acquire", "__enter__", "_acquire_restore")
"""Functions of the interpreter's library in which a thread waits for a lock. All others that take
one there (``Condition.wait``, ``join``) wait for news, or for the end of a thread."""
FAMILIES = (
    (("/concurrent/futures/",), ("/concurrent/futures/", "/asyncio/")),
    (("/asyncio/",), ("/concurrent/futures/", "/asyncio/")),
    (("/multiprocessing/",), ("/multiprocessing/",)),
)
"""Parts of the interpreter's library in which a thread waits for work that it gave away, and those
in which threads do such work: pools, executors and event loops run what others wait for."""

CHAINS_KEPT = 64
"""A rank's samples and its workers' are asked for their chain dozens of times in a judgement."""


class WaitChain(Struct, frozen=True, kw_only=True):
    """The threads of a process through which its main thread's wait leads, in one sample.

    Attributes:
        threads: The main one first, then all that could end its wait, directly or through others.
        ends: Those of them that wait for no further thread, or else only until a time; none where
            nobody is left to end it.
    """

    threads: tuple[ThreadStack, ...]
    ends: tuple[ThreadStack, ...]

    @property
    def main(self) -> ThreadStack:
        """The main thread."""
        return self.threads[0]

    @property
    def leads_on(self) -> bool:
        """Whether the main thread waits for other threads of its process."""
        return self.ends != (self.main,)


def wait_chain(sample: Sample) -> WaitChain | None:
    """Follow the main thread's wait through the threads of its process.

    Returns:
        None where the sample lacks stacks or the kernel's view.
    """
    return _followed(_ById(sample))


class _ById:
    """A sample as the key of a cache: comparing two of them field by field takes longer."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def __hash__(self) -> int:
        return id(self.sample)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.sample is other.sample


@lru_cache(CHAINS_KEPT)
def _followed(key: _ById) -> WaitChain | None:
    sample = key.sample
    threads = sample.stack.threads if sample.stack is not None else ()
    return chain_from(sample, threads[0]) if threads and sample.kernel is not None else None


def chain_from(sample: Sample, first: ThreadStack) -> WaitChain:
    """Follow the wait of any thread, through those beside the main one, or the one that is known.

    Args:
        sample: With stacks and the kernel's view.
        first: A thread of it; it takes the main thread's place in what is returned.
    """
    states = {one.tid: one for one in sample.kernel.threads} if sample.kernel is not None else {}
    threads = sample.stack.threads if sample.stack is not None else ()
    others = [_Helper.of(one, states) for one in threads[1:] if may_help(one)]
    followed, ends, met = [first], [], {id(first)}
    for thread in followed:
        state = states.get(thread.tid) if thread.tid is not None else None
        if state is None or not _waits_for_threads(thread, state):
            ends.append(thread)
            continue
        if own_targets(thread, state) or (in_event_loop(thread.frames) and limited_in_time(state)):
            ends.append(thread)
        able = _the_one(thread, threads) or _could_end(thread, others)
        new = [one for one in able if id(one) not in met]
        met |= {id(one) for one in new}
        followed += new
    if not ends:
        ends = [one for one in followed if one.tid is not None and limited_in_time(states[one.tid])]
    return WaitChain(threads=tuple(followed), ends=tuple(ends))


def joins(thread: ThreadStack) -> bool:
    """Whether it waits for the end of threads: of one, or of all at the interpreter's exit."""
    return any(
        frame.file.endswith("/threading.py") and frame.function.rpartition(".")[2] in JOINS
        for frame in thread.frames[-2:]
    )


def in_lock(thread: ThreadStack) -> bool:
    """Whether it waits for a lock, and not for news behind one."""
    if not thread.frames:
        return False
    inner = thread.frames[-1]
    name = inner.function.rpartition(".")[2]
    known = thread.holds_lock or thread.held_by is not None
    return known or (name in TAKE_LOCKS if is_standard(inner.file) else thread.takes_lock)


def awaits_executor(thread: ThreadStack) -> bool:
    """Whether it waits for what threads of an executor should do."""
    return any("/concurrent/futures/" in one.file for one in _innermost_standard(thread.frames))


def own_targets(thread: ThreadStack, state: ThreadState) -> tuple[WaitTarget, ...]:
    """Return what a thread waits for outside of its process's memory.

    Futexes name nobody, and neither does the socket by which an event loop is woken by other
    threads of its process: it has no name.
    """
    looping = in_event_loop(thread.frames)
    return tuple(
        target
        for target in state.waits_for
        if target.kind not in IN_MEMORY
        and not (looping and target.kind == "socket" and not target.name)
    )


def wakes_itself(thread: ThreadStack, state: ThreadState) -> bool:
    """Whether a thread is an event loop that only its own process can wake, and no time limit.

    Its one socket is then that by which its process wakes it. A second one without a name may lead
    to another process: that of a client of a unix socket has none.
    """
    alone = len(state.waits_for) == 1 and state.waits_for[0].kind == "socket"
    return alone and in_event_loop(thread.frames) and not own_targets(thread, state)


def is_our_thread(thread: ThreadStack) -> bool:
    """Whether a thread runs this package's code alone: what we wrap has the wrapped within."""
    files = [frame.file for frame in thread.frames if not is_standard(frame.file)]
    return bool(files) and all(map(is_ours, files))


def may_help(thread: ThreadStack) -> bool:
    """Whether a thread might end anybody's wait: it is none of ours, and not without work."""
    return not _parked(thread) and not is_our_thread(thread)


def _waits_for_threads(thread: ThreadStack, state: ThreadState) -> bool:
    """Whether only other threads of its process, as far as the kernel shows, could end its wait."""
    if not thread.frames or waits_for_ranks(thread.frames):
        return False
    if in_event_loop(thread.frames):
        return True
    in_library = thread.takes_lock or is_standard(thread.frames[-1].file)
    return in_library and state.state == "S" and state.syscall in FUTEXES


def limited_in_time(state: ThreadState) -> bool:
    """Whether a thread's wait ends by itself at a time."""
    return any(target.kind == "time" for target in state.waits_for)


def slept_anew(before: ThreadState, now: ThreadState) -> bool:
    """Whether a thread sleeps until another moment than before: it woke, and went back to sleep."""
    return None not in (before.wakes_ns, now.wakes_ns) and before.wakes_ns != now.wakes_ns


def in_event_loop(frames: Sequence[Frame]) -> bool:
    """Whether a thread is in an event loop that waits until there is anything to do."""
    inner = frames[-2:]
    return len(inner) == 2 and (
        inner[0].file.endswith("/asyncio/base_events.py")
        and inner[1].file.endswith("/selectors.py")
    )


class _Helper(NamedTuple):
    """A thread beside the main one, with what is asked of it for each that may wait for it.

    Attributes:
        owners: Whose code it runs.
        families: In which of `FAMILIES` it does work for others.
        rests: See `_rests`.
        timer: See `is_pending_timer`.
    """

    thread: ThreadStack
    owners: frozenset[object]
    families: frozenset[int]
    rests: bool
    timer: bool

    @classmethod
    def of(cls, thread: ThreadStack, states: dict[int, ThreadState]) -> _Helper:
        """Read a thread once."""
        files = {frame.file for frame in thread.frames}
        return cls(
            thread,
            owners=frozenset(map(owner_of, files)),
            families=_families(files, part=1),
            rests=_rests(thread, states),
            timer=is_pending_timer(thread, states),
        )


def _could_end(thread: ThreadStack, others: Sequence[_Helper]) -> Sequence[ThreadStack]:
    """Return the threads that could end a thread's wait.

    Those of the pool or loop that it gave work to: a helper that is busy with something else ends
    nobody's wait. Else those that run code of the same owner, and all that do anything. A library's
    own thread that rests only waits for news, and is left out unless some thread is joined that can
    be no other. A timer may call whatever it was given, so it may end any wait for news, and be the
    one that is joined; locks are given back by whoever took them. Nobody else ends the wait of a
    thread for a lock that it holds itself, and a bystander that of none but who joins it.

    Args:
        thread: The waiting one.
        others: The process's threads that may do work for it; it may be among them.
    """
    if thread.holds_lock:
        return []
    inner = {frame.file for frame in _innermost_standard(thread.frames)}
    families = _families(inner, part=0)
    workers = [
        one.thread
        for one in others
        if one.thread is not thread and not families.isdisjoint(one.families)
    ]
    if workers:
        return workers
    owner = _owner(thread.frames)
    if joins(thread) and not any(owner in one.owners for one in others):
        return [one.thread for one in others]
    news, by_their_end = not in_lock(thread), joins(thread)
    return [
        one.thread
        for one in others
        if (owner in one.owners or not one.rests or (news and one.timer))
        and (by_their_end or not one.thread.bystander)
    ]


def _the_one(thread: ThreadStack, threads: Sequence[ThreadStack]) -> list[ThreadStack]:
    """Return the thread that it joins or that has its lock, if known: no other can end its wait."""
    awaited = thread.joined if joins(thread) else thread.held_by
    return [one for one in threads if awaited is not None and one.tid == awaited]


def _families(files: Collection[str], *, part: Literal[0, 1]) -> frozenset[int]:
    """Return the `FAMILIES` in whose waiting (0) or working (1) parts any of these files is."""
    return frozenset(
        number
        for number, family in enumerate(FAMILIES)
        if any(one in file for file in files for one in family[part])
    )


def _innermost_standard(frames: Sequence[Frame]) -> Iterator[Frame]:
    for frame in reversed(frames):
        if not is_standard(frame.file):
            return
        yield frame


def _owner(frames: Sequence[Frame]) -> object:
    """Whose wait it is: that of whoever called the interpreter's library."""
    calling = next((one for one in reversed(frames) if not is_standard(one.file)), None)
    return owner_of(calling.file) if calling is not None else None


def _parked(thread: ThreadStack) -> bool:
    """Whether a thread waits for work from others, as its frames say."""
    return any(
        rule.rests and holds(rule, thread.frames, position)
        for position, frame in enumerate(thread.frames)
        for rule in meanings(frame.function, frame.file)
    )


def is_pending_timer(thread: ThreadStack, states: dict[int, ThreadState]) -> bool:
    """Whether a thread is one of Python's timers, which has not run out: it may do anything then.

    Args:
        thread: Of a process.
        states: Of all its threads, by kernel id.
    """
    state = states.get(thread.tid) if thread.tid is not None else None
    runs = any(
        frame.function == "Timer.run" and frame.file.endswith("/threading.py")
        for frame in thread.frames
    )
    return runs and state is not None and limited_in_time(state)


def _rests(thread: ThreadStack, states: dict[int, ThreadState]) -> bool:
    """Whether it only waits for news. A loop that is nobody's may run anybody's coroutine.

    Who writes to a full pipe does so for somebody, and may hold what others wait for.
    """
    state = states.get(thread.tid) if thread.tid is not None else None
    if state is None:
        return False
    if in_event_loop(thread.frames) and all(is_standard(frame.file) for frame in thread.frames):
        return False
    named = own_targets(thread, state)
    reads = bool(named) and all(
        (one.kind in ("socket", "pipe") or one.name.startswith(EVENTS)) and one.call not in WRITES
        for one in named
    )
    return reads or _waits_for_threads(thread, state)
