"""rank_diverged, where ranks meet at an object of multiprocessing that they share.

A barrier, event, condition or semaphore that spawned ranks were given is a place where they meet,
as a collective is. Who went past it waits in the next collective for those who wait for him there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.divergence.attribution import find_diverged
from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    Operation,
    PendingCollective,
    way_in,
)
from lightning_hangcheck.diagnosis.graph.process_edges import shared_objects
from lightning_hangcheck.diagnosis.rules.blame import blame, of_omission
from lightning_hangcheck.diagnosis.rules.contract import Rule
from lightning_hangcheck.diagnosis.rules.who_ends import who_ends
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.waits.kernel_targets import in_words
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.divergence.attribution import Basis
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import Finding, Situation

MOST_SHOWN = 4


def missed_meeting(situation: Situation) -> Finding | None:
    """Blame who departed, where ranks at what they share and ranks in collectives wait in a circle.

    Another thread of any of them may still bring what is missing (a queue's feeder, a timer), so
    that nobody could is never proven.
    """
    there = [one for one in situation.suspects_that_are("idle") if shared_objects(one)]
    members = situation.cycle(there[0]) if there else ()
    elsewhere = [one for one in members if one.activity == "waiting"]
    if not elsewhere:
        return None
    meeting = [one for one in members if one.activity == "idle"]
    diverged, basis = _diverged(situation, meeting, elsewhere)
    culprits = [one for one in members if one.rank in diverged]
    finding = blame(
        culprits,
        cause="rank_diverged",
        ended_by=who_ends(situation, meeting),
        confidence=0.4 if basis == "nothing" else 0.8,
        sentence=_sentence(meeting, elsewhere, culprits, basis),
        waited_for=situation.waited_for,
        evidence=[
            EvidenceItem("kernel", one.rank, f"{one.waiter} is {in_words(target)}")
            for one in meeting[:MOST_SHOWN]
            for target in one.targets[:1]
        ],
    )
    others = [one for one in members if one.rank not in diverged]
    ways = ({one.frames for one in side} for side in (culprits, others))
    finding = of_omission(finding, situation.job.case.code, *ways)
    return replace(finding, left_standing=tuple(one.rank for one in others))


MISSED_MEETING = Rule(cause="rank_diverged", needs=("stacks", "kernel"), find=missed_meeting)


def _diverged(
    situation: Situation, meeting: list[RankReading], elsewhere: list[RankReading]
) -> tuple[tuple[int, ...], Basis]:
    """Those who wait outside of collectives are together, whatever part of the object it is."""
    keys = {_pending(one): "there" for one in meeting}
    keys |= {_pending(one): str(way_in(one.frames)) for one in elsewhere}
    return find_diverged(situation.job.case.code, keys, lambda _: None)


def _pending(reading: RankReading) -> PendingCollective:
    name = reading.wait.name if reading.wait is not None else "meeting"
    return PendingCollective(reading=reading, operation=Operation(name), way=reading.frames)


def _sentence(
    meeting: list[RankReading],
    elsewhere: list[RankReading],
    culprits: list[RankReading],
    basis: Basis,
) -> str:
    at_it = [one.rank for one in meeting]
    since = duration(min(one.silence_s for one in (*meeting, *elsewhere)))
    they = join(
        f"{name_ranks(at_it)} {verb(at_it, 'waits', 'wait')}",
        within(meeting[0].place),
        "at a semaphore or lock that ranks share",
    )
    rest = [one.rank for one in elsewhere]
    wait = elsewhere[0].wait
    others = join(
        f"{name_ranks(rest)} {verb(rest, 'waits', 'wait')}",
        f"in {wait.name}" if wait is not None else "",
        within(elsewhere[0].place),
    )
    if basis == "nothing":
        return f"for {since} ranks have waited for each other: {they}, {others}"
    who = [one.rank for one in culprits]
    left = f"{name_ranks(who)} {verb(who, 'has', 'have')} left the common way {since} ago"
    first, second = (others, they) if set(who) <= set(rest) else (they, others)
    return f"{left}: {first}, {second}"
