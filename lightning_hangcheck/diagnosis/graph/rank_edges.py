"""Which ranks wait for which: in a collective, in the rendezvous, in one of our guards.

A rank in a collective waits for the members of its group that have not come to it. Ranks that form
a process group wait for those that have not come, or for the store. A rank that waits for a key of
the store waits for those that could still bring it. A rank in a guard waits for every rank that has
not come to it. At any world size few edges are drawn: each rank keeps its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.divergence.awaited_ranks import by_awaited
from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    PAIRED,
    pending_collective,
    record_of,
)
from lightning_hangcheck.model.verdict import Edge
from lightning_hangcheck.reading.wording import join

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from lightning_hangcheck.diagnosis.divergence.divergence import Divergence
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading

MOST_FULL = 4_096
"""Edges between two sets of ranks that are all drawn: 64 times 64."""
UNNAMED = ("", "undefined", "default_pg")
"""Groups for which the program has no name of its own."""
AT_STORE = "for a key of the store"
STORE = "host:store"
"""A rank that finds no store sleeps between its attempts: no socket shows the address then."""


def collective_edges(
    job: JobReading, divergence: Divergence | None, awaited: Mapping[int, tuple[int, ...]]
) -> Iterator[Edge]:
    """Draw who waits in a collective for whom.

    Where ranks' ways parted, and nobody else can help them on, they wait for those that diverged;
    where nothing tells who did, for the other ends of their messages, or else for each other.
    """
    parted = set(divergence.operations) if divergence is not None else set()
    helped = {one for rank in parted for one in awaited.get(rank, ())} - parted
    if divergence is not None and not helped:
        diverged = [job.ranks[rank] for rank in divergence.diverged]
        rest = [job.ranks[rank] for rank in sorted(parted) if rank not in divergence.diverged]
        if rest:
            yield from each_to_each(rest, diverged, _InGroup().said)
        elif _in_messages(job, awaited, parted):
            parted = set()
        else:
            yield from groups_to_groups(_sides(job, divergence))
        awaited = {rank: others for rank, others in awaited.items() if rank not in parted}
    said = _InGroup().said
    for others, waiters in by_awaited(awaited).items():
        readings = [job.ranks[rank] for rank in waiters]
        yield from each_to_each(readings, [job.ranks[rank] for rank in others], said)


def rendezvous_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits in the rendezvous for whom.

    Rank 0 keeps the store unless the launcher does, so a rank that finds no store waits for rank 0
    while that one has not come to the rendezvous. Rank 0 itself stands in the same call until the
    others have come: while one of them is still on its way, that is whom it waits for.
    """
    yield from _to_all_others(job, job.waiting_in({"rendezvous_peers"}))
    connecting = job.waiting_in({"rendezvous_connect"})
    if not connecting:
        return
    keeper = job.ranks.get(0)
    comes_late = keeper is not None and keeper.activity != "waiting"
    coming = [one for one in job.ranks.values() if one.activity != "waiting"]
    for reading in connecting:
        if reading.rank == 0 and coming:
            yield from each_to_each([reading], coming)
            continue
        target = keeper.node if comes_late and keeper is not None else STORE
        yield Edge(reading.node, target, through(reading))


def store_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits for a key of the ranks' store for whom.

    For the ranks that wait neither there nor for other ranks; where none is left, for those that
    are gone.
    """
    waiting = [reading for reading in job.ranks.values() if reading.at_store]
    if not waiting:
        return
    others = [reading for reading in job.ranks.values() if not reading.at_store]
    free = [one for one in others if one.activity == "unheard" or _is_free(one)]
    gone = [one for one in others if one.activity == "gone"]
    for waiter in waiting:
        for target in free or gone:
            yield Edge(waiter.node, target.node, AT_STORE)


def _is_free(reading: RankReading) -> bool:
    return reading.alive and reading.activity != "waiting"


def guard_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits in a guard for whom."""
    yield from _to_all_others(job, job.waiting_in({"guard"}))


def _to_all_others(job: JobReading, waiting: Sequence[RankReading]) -> Iterator[Edge]:
    if waiting:
        inside = {reading.rank for reading in waiting}
        outside = [reading for reading in job.ranks.values() if reading.rank not in inside]
        yield from each_to_each(waiting, outside)


def _in_messages(
    job: JobReading, awaited: Mapping[int, Sequence[int]], ranks: Collection[int]
) -> bool:
    """Whether ranks wait in sends and receives alone, all of whose other ends are known."""
    waits = [job.ranks[rank].wait for rank in ranks]
    paired = all(wait is not None and wait.name in PAIRED for wait in waits)
    return paired and all(awaited.get(rank) for rank in ranks)


def _sides(job: JobReading, divergence: Divergence) -> list[list[RankReading]]:
    sides: dict[object, list[RankReading]] = {}
    for one in divergence.pending_collectives:
        side = (one.group, str(divergence.operations[one.rank]), one.reading.frames)
        sides.setdefault(side, []).append(job.ranks[one.rank])
    if len(sides) == 1:
        return [[reading] for side in sides.values() for reading in side]
    return list(sides.values())


def through(reading: RankReading) -> str:
    """Say in what a rank waits, for the edge's label."""
    wait = reading.wait
    return f"in {wait.name}" if wait is not None else ""


class _InGroup:
    """Says in what a rank waits, and in which group by the program's own name for it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def said(self, reading: RankReading) -> str:
        """Return it as the edge's label."""
        key = reading.told_by_rank, id(reading.wait)
        if key not in self._known:
            self._known[key] = join(through(reading), _of_group(reading))
        return self._known[key]


def _of_group(reading: RankReading) -> str:
    pending = pending_collective(reading)
    group = pending.group if pending is not None else None
    record = record_of(reading, group) if group is not None else None
    described = record is not None and record.description not in UNNAMED
    return f"of {record.description}" if record is not None and described else ""


def each_to_each(
    waiters: Sequence[RankReading],
    awaited: Sequence[RankReading],
    said: Callable[[RankReading], str] = through,
) -> Iterator[Edge]:
    """Draw that every one of the first waits for every one of the second.

    Above `MOST_FULL` edges, each waiter keeps one edge and so does each awaited rank, which leaves
    the graph's ends as they are: 512 ranks that wait for 512 would be 262,144 edges.
    """
    if not waiters or not awaited:
        return
    if len(waiters) * len(awaited) <= MOST_FULL:
        pairs = [(waiter, target) for waiter in waiters for target in awaited]
    else:
        pairs = [(waiter, awaited[0]) for waiter in waiters]
        pairs += [(waiters[0], target) for target in awaited[1:]]
    for waiter, target in pairs:
        yield Edge(waiter.node, target.node, said(waiter))


def groups_to_groups(groups: Sequence[Sequence[RankReading]]) -> Iterator[Edge]:
    """Draw that the ranks of every group wait for those of all others: one cycle through all.

    Args:
        groups: At least two, none empty.
    """
    for group, following in zip(groups, (*groups[1:], groups[0]), strict=True):
        for waiter in group:
            yield Edge(waiter.node, following[0].node, through(waiter))
        for target in following[1:]:
            yield Edge(group[0].node, target.node, through(group[0]))
