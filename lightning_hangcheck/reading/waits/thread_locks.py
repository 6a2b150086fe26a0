"""Threads of one process that wait for locks and for each other: is any left to end that? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import ThreadStack
from lightning_hangcheck.model.naming.code_owner import is_standard, is_users
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.waits.kernel_targets import called_back
from lightning_hangcheck.reading.waits.remembered import remembered
from lightning_hangcheck.reading.waits.wait_chain import (
    awaits_executor,
    in_lock,
    joins,
    may_help,
    wait_chain,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.model.evidence import Frame, ProcessLook, Sample, ThreadState

Standing = tuple[int | None, tuple["Frame", ...], tuple[str, ...]]


class LockedThreads(Struct, frozen=True):
    """Threads that wait for a lock, the main thread first."""

    threads: tuple[ThreadStack, ...]

    @property
    def places(self) -> tuple[Frame, ...]:
        """Lines of the user's code at which they stand, each once."""
        found = (users_place(thread.frames) for thread in self.threads)
        return tuple(dict.fromkeys(place for place in found if place is not None))


@remembered
def read_locks(look: ProcessLook) -> LockedThreads | None:
    """Tell which threads of a process stand in locks, by its two newest samples.

    Returns:
        None where the main thread is in no lock and waits for no thread that is, where one thread
        waits and another may release its lock, or where the samples don't show it twice.
    """
    samples = [one for one in look.samples if one.kernel is not None and one.stack is not None][-2:]
    found = [locked for one in samples if (locked := _locked(one))]
    if len(found) < 2 or {one.tid for one in found[0]} != {one.tid for one in found[1]}:
        return None
    main = samples[1].stack.threads[0] if samples[1].stack is not None else None
    gave_work = main is not None and main is not found[1][0] and not joins(main)
    sure = len(found[1]) > 1 and not gave_work
    return LockedThreads(found[1]) if sure or waits_in_vain(look) else None


@remembered
def waits_in_vain(look: ProcessLook) -> bool:
    """Whether nobody is left to end a process's wait, and its two newest samples show the same.

    That is proven where its only thread waits for a word of memory that no other process can
    change: a fork leaves all other threads of the parent behind, also one that held a lock. Else
    the main thread must wait for a lock, for the end of threads or for an executor, and so, without
    a time limit, must every thread that could end this. One of these may also wait for news, such
    as a queue's or an event's, where the user's own code does so and every thread waits likewise:
    to what a library waits for, a thread may see that runs no Python, and one that reads from a
    connection may call the user back. See `called_back` for what runs no Python before it does: it
    gives back no lock whose holder is known.
    """
    samples = [one for one in look.samples if one.kernel is not None][-2:]
    if called_back(look) and not all(map(_holders_known, samples)):
        return False
    circles = [_circle(one) for one in samples]
    return len(circles) == 2 and circles[0] is not None and circles[0] == circles[1]


def _locked(sample: Sample) -> tuple[ThreadStack, ...]:
    """Threads in locks; none where the main thread is in none, and waits for no thread.

    Nor where it is known who has the lock, and that this thread does something else. Where nobody
    is left to end the main one's wait, only those through which it leads.
    """
    threads = sample.stack.threads if sample.stack is not None else ()
    endless = _words(sample.kernel.threads if sample.kernel is not None else ())
    locked = tuple(one for one in threads if one.tid in endless and in_lock(one))
    if not locked or not (locked[0] is threads[0] or _given_away(threads[0])):
        return ()
    chain = wait_chain(sample)
    if chain is not None and not chain.ends:
        return tuple(one for one in locked if one in chain.threads)
    return locked if _last_holder(locked[0], threads) in locked else ()


def _last_holder(thread: ThreadStack, threads: Sequence[ThreadStack]) -> ThreadStack:
    """Return who has a thread's lock, or who has the lock that this one takes, and so on."""
    by_tid = {one.tid: one for one in threads}
    met = [thread]
    while (holder := by_tid.get(met[-1].held_by or 0)) is not None and holder not in met:
        met.append(holder)
    return met[-1]


def _circle(sample: Sample) -> set[Standing] | None:
    """Return where the threads stand of which none is left to end the main one's wait."""
    states = sample.kernel.threads if sample.kernel is not None else ()
    words = _words(states)
    left_out = sample.kernel.threads_left_out if sample.kernel is not None else 0
    if len(states) == 1 and not left_out:
        return {(states[0].tid, (), words[states[0].tid])} if words else None
    chain = wait_chain(sample)
    if chain is None or chain.ends or not all(one.tid in words for one in chain.threads):
        return None
    main, *others = chain.threads
    if not (in_lock(main) or (others and _given_away(main))):
        return None
    for_news = [one for one in others if not (in_lock(one) or _given_away(one))]
    if for_news and not (all(map(_users_wait, for_news)) and _all_wait(sample, words)):
        return None
    return {(one.tid, one.frames, words[one.tid]) for one in chain.threads if one.tid is not None}


def _holders_known(sample: Sample) -> bool:
    """Whether the source tells who has each lock through which the main thread's wait leads."""
    chain = wait_chain(sample)
    return chain is not None and all(
        one.holds_lock or one.held_by is not None for one in chain.threads
    )


def _all_wait(sample: Sample, words: Collection[int]) -> bool:
    threads = sample.stack.threads if sample.stack is not None else ()
    return all(one.tid in words for one in threads if may_help(one) and not one.bystander)


def _words(states: Sequence[ThreadState]) -> dict[int, tuple[str, ...]]:
    """The words of its own memory that each thread waits for without a time limit."""
    found = {
        one.tid: tuple(target.name for target in one.waits_for if target.kind == "futex")
        for one in states
    }
    return {tid: names for tid, names in found.items() if names}


def _given_away(thread: ThreadStack) -> bool:
    return joins(thread) or awaits_executor(thread)


def _users_wait(thread: ThreadStack) -> bool:
    """Whether the user's own code called what the interpreter's library waits in."""
    calling = next((one for one in reversed(thread.frames) if not is_standard(one.file)), None)
    return calling is not None and is_users(calling.file)
