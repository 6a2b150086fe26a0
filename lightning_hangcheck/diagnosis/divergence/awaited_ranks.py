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
    call_of,
    record_of,
    records,
    way_in,
)
from lightning_hangcheck.reading.records.messages import awaited_peers
from lightning_hangcheck.reading.waits.torch_waits import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.case import RankView


def awaited_ranks(
    job: JobReading, pending: Mapping[int, PendingCollective]
) -> dict[int, tuple[int, ...]]:
    """Return for each rank that waits in a collective the ranks that it waits for, ascending.

    Args:
        job: All ranks.
        pending: Where they wait, as `pending_collectives` returns it.
    """
    outside = tuple(rank for rank in job.ranks if rank not in pending)
    away, among = frozenset(outside), _MayMeet(outside)
    views = {rank: one.view for rank, one in job.ranks.items()}
    found: dict[int, tuple[int, ...]] = {}
    known: dict[tuple[str, int], tuple[int, ...]] = {}
    for rank, one in pending.items():
        key = one.numbered
        if key is None:
            found[rank] = _of_unnumbered(views, one, among)
            continue
        if key not in known:
            known[key] = _of_operation(job, one, away)
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


def closed_circle(awaited: Mapping[int, tuple[int, ...]]) -> frozenset[int]:
    """Return the ranks that wait only for each other: nobody else can help them on.

    Args:
        awaited: For whom each waits, as `awaited_ranks` tells it.
    """
    inside = {rank for rank, others in awaited.items() if others}
    together, waiters = _by_tuple(awaited)
    awaiting: dict[int, list[int]] = {}
    for number, others in together.items():
        for one in others:
            awaiting.setdefault(one, []).append(number)
    pending = [number for number, others in together.items() if not inside.issuperset(others)]
    left = set(pending)
    while pending:
        for rank in waiters[pending.pop()]:
            inside.discard(rank)
            new = [number for number in awaiting.get(rank, ()) if number not in left]
            left.update(new)
            pending += new
    return frozenset(inside)


def ends_of(awaited: Mapping[int, tuple[int, ...]], ranks: Collection[int]) -> tuple[int, ...]:
    """Return those of a closed circle's ranks that all they lead to also wait for.

    networkx is imported here, as in `graph.wait_graph`. Ranks that wait for the same ones share a
    node between: a hundred thousand that wait for a thousand would be too many edges.
    """
    import networkx

    if not ranks:
        return ()
    together, waiters = _by_tuple({rank: awaited[rank] for rank in ranks})
    graph: networkx.DiGraph[tuple[str, int]] = networkx.DiGraph()
    for number, others in together.items():
        graph.add_edges_from((("rank", one), ("for", number)) for one in waiters[number])
        graph.add_edges_from((("for", number), ("rank", one)) for one in others)
    ends: list[int] = []
    for circle in networkx.strongly_connected_components(graph):
        if all(following in circle for node in circle for following in graph[node]):
            ends += (number for kind, number in circle if kind == "rank")
    return tuple(sorted(ends))


def _by_tuple(
    awaited: Mapping[int, tuple[int, ...]],
) -> tuple[dict[int, tuple[int, ...]], dict[int, list[int]]]:
    """Return the different tuples of those awaited, by their identity, and who waits for each."""
    together: dict[int, tuple[int, ...]] = {}
    waiters: dict[int, list[int]] = {}
    for rank, others in awaited.items():
        if others:
            together[id(others)] = others
            waiters.setdefault(id(others), []).append(rank)
    return together, waiters


def without_message(job: JobReading) -> tuple[int, ...]:
    """Return the ranks that left out a message that most posted, and that others wait for."""
    totals = _posted(job)
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


def _posted(job: JobReading) -> dict[int, tuple[int, int]]:
    """Return how many messages each rank sent and asked for; what one tells for others, once."""
    known: dict[int, tuple[int, int]] = {}
    found: dict[int, tuple[int, int]] = {}
    for rank, one in job.ranks.items():
        counts = one.view.flight.messages if one.view.flight is not None else None
        if counts is not None:
            told_by = one.told_by_rank
            if told_by not in known:
                known[told_by] = sum(counts.sent.values()), sum(counts.received.values())
            found[rank] = known[told_by]
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
    views: Mapping[int, RankView], pending: PendingCollective, among: _MayMeet
) -> tuple[int, ...]:
    name, reading = pending.operation.name, pending.reading
    if name in PAIRED:
        return awaited_peers(views, reading.view, name) or among.outside
    return among.whom(reading)


class _MayMeet:
    """Whom of those outside ranks may meet, once for all that have the same groups."""

    def __init__(self, outside: tuple[int, ...]) -> None:
        self.outside = outside
        self._called: dict[int, tuple[int, ...]] = {}
        self._members: dict[tuple[int, ...], tuple[int, ...]] = {(): outside}

    def whom(self, reading: RankReading) -> tuple[int, ...]:
        """Return those for whom a rank may wait; equal ones are one and the same tuple."""
        told_by = reading.told_by_rank
        if told_by not in self._called:
            self._called[told_by] = tuple(_called(reading))
        every = records(reading)
        groups = [every[at].ranks for at in self._called[told_by] if at < len(every)]
        key = tuple(map(id, groups)) if all(groups) else ()
        if key not in self._members:
            met = frozenset().union(*groups)
            self._members[key] = tuple(rank for rank in self.outside if rank in met)
        return self._members[key]


def _called(reading: RankReading) -> Iterator[int]:
    """Yield which of its groups a rank may be in that are not in its record yet, or no more.

    Those with which it has called a collective from this line; where there is none, all with which
    it has called any: who belongs to none of these was never waited for.
    """
    way = way_in(reading.frames)
    called = [(at, one) for at, one in enumerate(records(reading)) if one.entries]
    here = [
        (at, one)
        for at, one in called
        if any(way_in(call_of(reading, entry).frames) == way for entry in one.entries)
    ]
    yield from (at for at, _ in here or called)
