"""thread_deadlock, gil_held: no thread of a process can go on.

Its threads wait for locks that only they could release, or a C call keeps the interpreter lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.causes.files import file_of
from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import who_ends
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.waits.stuck_thread import lock_keeper
from lightning_hangcheck.reading.waits.thread_locks import read_locks
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.evidence import ThreadStack
    from lightning_hangcheck.reading.waits.thread_locks import LockedThreads

MOST_SHOWN = 8


def thread_deadlock(situation: Situation) -> Finding | None:
    """Blame the idle suspects whose threads stand in locks.

    Where the thread that may release one waits for something that has a name, that is the cause.
    """
    found = [
        (reading, locked)
        for reading in situation.suspects_that_are("idle")
        if (own := reading.view.own_process) is not None and not reading.targets
        if (locked := read_locks(own)) is not None
    ]
    return _blame(situation, found) if found else None


THREAD_DEADLOCK = Rule(cause="thread_deadlock", needs=("stacks", "kernel"), find=thread_deadlock)


def gil_held(situation: Situation) -> Finding | None:
    """Blame suspects whose pulse stands still, or that sleep with the interpreter lock in hand."""
    suspects = situation.suspects_that_are("idle", "busy")
    holding = [reading for reading in suspects if _keeps_lock(reading)]
    if not holding:
        return None
    who, first = [reading.rank for reading in holding], holding[0]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        f"kept the interpreter lock for {duration(first.silence_s)}",
        f"{within(first.place)}:",
        "a C call that does not return, while no other thread of the process can run",
    )
    return blame(
        holding,
        cause="gil_held",
        ended_by=who_ends(situation, holding),
        confidence=0.9 if situation.waited_for else 0.6,
        sentence=sentence,
        waited_for=situation.waited_for,
    )


GIL_HELD = Rule(cause="gil_held", needs=("stacks",), find=gil_held)


def _blame(situation: Situation, found: Sequence[tuple[RankReading, LockedThreads]]) -> Finding:
    """Blame ranks; the first one's threads stand for those of all in the sentence."""
    culprits, locked = [reading for reading, _ in found], found[0][1]
    ended_by = who_ends(situation, culprits)
    proven = ended_by == "nobody" and situation.waited_for
    who = [reading.rank for reading in culprits]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        f"waited {duration(max(reading.silence_s for reading in culprits))}",
        verb(who, "", "each"),
        _in_words(locked, culprits[0]),
    )
    finding = blame(
        culprits,
        cause="thread_deadlock",
        ended_by=ended_by,
        confidence=0.95 if proven else 0.7,
        sentence=sentence,
        waited_for=situation.waited_for,
    )
    evidence = tuple(
        EvidenceItem(
            "stack",
            reading.rank,
            f"thread {thread.label} takes a lock at {thread.frames[-1]}",
        )
        for reading, one in found
        for thread in one.threads
    )
    place = locked.places[0] if locked.places else None
    aspect = "awaited" if _awaits(locked, culprits[0]) else None
    return replace(finding, place=place, aspect=aspect, evidence=evidence[:MOST_SHOWN])


def _awaits(locked: LockedThreads, reading: RankReading) -> bool:
    """Whether its main thread is in no lock itself, but waits for one of these threads."""
    own = reading.view.own_process
    return own is not None and locked.threads[0].tid != own.pid


def _in_words(locked: LockedThreads, reading: RankReading) -> str:
    places = " and ".join(within(place) for place in locked.places[:3])
    waits_at = users_place(reading.frames)
    if _awaits(locked, reading) and len(locked.threads) == 1:
        lock = "for a lock that no other running thread could release"
        return join(
            within(waits_at), f"for its thread {locked.threads[0].label}, which waits", places, lock
        )
    if locked.threads[0].holds_lock:
        return f"{places} for a lock that it holds itself, by a call further out"
    if len(locked.threads) == 1:
        return f"{places} for a lock that no other running thread of it could release"
    if len(locked.places) == 2 and _of_each_other(locked.threads):
        first, second = locked.places
        waits = f"which waits {within(second)} for a lock that {first.function} holds"
        return (
            f"{within(first)} for a lock that its thread {locked.threads[1].label} holds, {waits}"
        )
    count = len(locked.threads)
    return f"with {count} threads for each other's locks: {places}"


def _of_each_other(threads: Sequence[ThreadStack]) -> bool:
    """Whether it is known that each of two threads takes a lock which the other one has."""
    return len(threads) == 2 and [one.held_by for one in threads] == [
        one.tid for one in reversed(threads)
    ]


def _keeps_lock(reading: RankReading) -> bool:
    """A call that waits for a file has a cause of its own, which names it.

    safetensors opens files with the interpreter lock in hand.
    """
    own = reading.view.own_process
    if own is None or file_of(reading) is not None:
        return False
    return lock_keeper(own, reading.view.beat) is not None
