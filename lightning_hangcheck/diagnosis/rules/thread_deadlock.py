"""thread_deadlock: threads of one process wait for locks that only they could release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.thread_locks import read_locks
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, within
from lightning_hangcheck.model.verdict import EvidenceItem

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.scene import RankReading
    from lightning_hangcheck.diagnosis.thread_locks import LockedThreads

MOST_SHOWN = 8


def find(situation: Situation) -> Finding | None:
    """Blame the first idle suspect whose threads stand in locks.

    Proven where every thread that runs the user's code stands in one and there are several. A
    signal could still wake a lone one.
    """
    for reading in situation.suspects_that_are("idle"):
        locked = read_locks(reading.view)
        if locked is not None:
            return _blame(situation, reading, locked)
    return None


def _blame(situation: Situation, reading: RankReading, locked: LockedThreads) -> Finding:
    proven = locked.all_locked and len(locked.threads) > 1 and situation.waited_for
    sentence = join(
        name_ranks([reading.rank]),
        f"has waited {duration(reading.silence_s)}",
        _in_words(locked),
    )
    finding = blame(
        [reading],
        "thread_deadlock",
        "proven" if proven else situation.certainty("idle"),
        0.95 if proven else 0.7,
        sentence,
        waited_for=situation.waited_for,
    )
    evidence = tuple(
        EvidenceItem(
            "stack",
            reading.rank,
            f"thread {thread.name or thread.tid} takes a lock at {thread.frames[-1]}",
        )
        for thread in locked.threads[:MOST_SHOWN]
    )
    return replace(finding, place=locked.places[0] if locked.places else None, evidence=evidence)


def _in_words(locked: LockedThreads) -> str:
    places = " and ".join(within(place) for place in locked.places[:3])
    if len(locked.threads) == 1:
        return f"{places} for a lock that no other running thread of it could release"
    count = len(locked.threads)
    return f"with {count} threads for each other's locks: {places}"


RULE = Rule(cause="thread_deadlock", needs=("stacks", "kernel"), find=find)
