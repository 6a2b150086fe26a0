"""For which ranks does one wait in a collective, a send or a receive?

For the members of the group that have not entered its operation, by their numbers in torch's
record; for the other end of a message, by how many each has posted. Where neither is recorded, for
all ranks that stand in no collective.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    PAIRED,
    all_pending,
    call_of,
    record_of,
    records,
    way_in,
)
from lightning_hangcheck.reading.records.messages import awaited_peers
from lightning_hangcheck.reading.waits.torch_waits import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.diagnosis.job import JobReading, RankReading
    from lightning_hangcheck.model.case import RankView


def awaited_ranks(job: JobReading) -> dict[int, tuple[int, ...]]:
    """Return for each rank that waits in a collective the ranks that it waits for, ascending."""
    waiting = {one.rank: one for one in job.waiting_in(COLLECTIVE)}
    outside = tuple(rank for rank in job.ranks if rank not in waiting)
    away, among = frozenset(outside), _MayMeet(outside)
    views = {rank: one.view for rank, one in job.ranks.items()}
    found: dict[int, tuple[int, ...]] = {}
    known: dict[tuple[str, int], tuple[int, ...]] = {}
    for rank, pending in all_pending(waiting.values()).items():
        key = pending.numbered if pending is not None else None
        if pending is None or key is None:
            found[rank] = _of_unnumbered(views, waiting[rank], pending, among)
            continue
        if key not in known:
            known[key] = _of_operation(job, pending, away)
        found[rank] = known[key]
    return found


def by_awaited(awaited: Mapping[int, Sequence[int]]) -> dict[tuple[int, ...], list[int]]:
    """Group ranks by whom they wait for, themselves left out.

    A hundred thousand ranks share one and the same tuple: each is read once.

    Args:
        awaited: For whom each waits, as `awaited_ranks` tells it.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    known: dict[int, tuple[frozenset[int], list[int]]] = {}
    for rank, others in awaited.items():
        if id(others) not in known:
            known[id(others)] = frozenset(others), found.setdefault(tuple(others), [])
        members, together = known[id(others)]
        if rank in members:
            together = found.setdefault(tuple(one for one in others if one != rank), [])
        together.append(rank)
    return {others: ranks for others, ranks in found.items() if ranks}


def closed_circle(awaited: dict[int, tuple[int, ...]]) -> frozenset[int]:
    """Return the ranks that wait only for each other: nobody else can help them on.

    Args:
        awaited: For whom each waits, as `awaited_ranks` tells it.
    """
    inside = {rank for rank, others in awaited.items() if others}
    groups = {id(others): others for others in awaited.values()}
    while left := {
        number for number, others in groups.items() if others and not inside.issuperset(others)
    }:
        inside -= {rank for rank in inside if id(awaited[rank]) in left}
        groups = {number: others for number, others in groups.items() if number not in left}
    return frozenset(inside)


def ends_of(awaited: dict[int, tuple[int, ...]], ranks: Collection[int]) -> tuple[int, ...]:
    """Return those of a closed circle's ranks that all they lead to also wait for."""
    reached = {rank: _reached(awaited, rank) for rank in ranks}
    return tuple(sorted(r for r in ranks if all(r in reached[other] for other in reached[r])))


def without_message(job: JobReading) -> tuple[int, ...]:
    """Return the ranks that left out a message that most posted, and that others wait for."""
    totals = {
        rank: (sum(counts.sent.values()), sum(counts.received.values()))
        for rank, one in job.ranks.items()
        if one.view.flight is not None and (counts := one.view.flight.messages) is not None
    }
    usual, often = Counter(totals.values()).most_common(1)[0] if totals else ((0, 0), 0)
    if 2 * often <= len(totals):
        return ()
    views = {rank: one.view for rank, one in job.ranks.items()}
    awaited = {
        peer
        for one in job.waiting_in(COLLECTIVE)
        if one.wait is not None and one.wait.name in PAIRED
        for peer in awaited_peers(views, one.view, one.wait.name)
    }
    return tuple(rank for rank in sorted(awaited) if totals[rank] != usual)


def _reached(awaited: dict[int, tuple[int, ...]], start: int) -> set[int]:
    found: set[int] = set()
    pending = [start]
    while pending:
        new = set(awaited.get(pending.pop(), ())) - found
        found |= new
        pending.extend(new)
    return found


def _of_operation(
    job: JobReading, pending: PendingCollective, outside: AbstractSet[int]
) -> tuple[int, ...]:
    """Return who has not entered an operation; where all have, or it is not known, who is away.

    Of a broadcast its source alone, where that has not: what the others do changes nothing.
    """
    group, seq = pending.group or "", pending.seq or 0
    record = record_of(pending.reading, group)
    named = set(record.ranks) if record is not None else set()
    members = (named or set(job.ranks)) & job.ranks.keys()

    def owes(rank: int) -> bool:
        own = record_of(job.ranks[rank], group)
        if own is not None:
            return own.last_enqueued < seq
        recorded = job.ranks[rank].view.flight is not None
        return rank in outside or (recorded and rank in named)

    owing = tuple(rank for rank in sorted(members) if owes(rank))
    if pending.source in owing:
        return (pending.source,)
    return owing or tuple(sorted(members & outside))


def _of_unnumbered(
    views: Mapping[int, RankView],
    reading: RankReading,
    pending: PendingCollective | None,
    among: _MayMeet,
) -> tuple[int, ...]:
    name = pending.operation.name if pending is not None else ""
    if name in PAIRED:
        return awaited_peers(views, reading.view, name) or among.outside
    return among.whom(reading)


class _MayMeet:
    """Whom of those outside ranks may meet, once for all that one rank tells for."""

    def __init__(self, outside: tuple[int, ...]) -> None:
        self.outside = outside
        self._told: dict[int, tuple[int, ...]] = {}
        self._members: dict[frozenset[int], tuple[int, ...]] = {frozenset(): outside}

    def whom(self, reading: RankReading) -> tuple[int, ...]:
        """Return those for whom a rank may wait; equal ones are one and the same tuple."""
        told_by = reading.rank if reading.told_by is None else reading.told_by
        if told_by not in self._told:
            met = _met(reading)
            if met not in self._members:
                self._members[met] = tuple(rank for rank in self.outside if rank in met)
            self._told[told_by] = self._members[met]
        return self._told[told_by]


def _met(reading: RankReading) -> frozenset[int]:
    """Return whom a rank may meet in a collective that is not in its record yet, or no more.

    The members of the groups with which it has called one from this line; where there is none, of
    all with which it has called any: who belongs to none of these was never waited for.

    Returns:
        None of them where that is not known: whoever there is.
    """
    way = way_in(reading.frames)
    called = [one for one in records(reading) if one.entries]
    here = [
        one
        for one in called
        if any(way_in(call_of(reading, entry).frames) == way for entry in one.entries)
    ]
    groups = [frozenset(one.ranks) for one in here or called]
    return frozenset().union(*groups) if all(groups) else frozenset()
