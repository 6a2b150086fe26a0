"""Drawing many edges with few lines: every rank keeps its place in the graph, at any world size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.diagnosis.scene import RankReading

MOST_FULL = 4_096
"""Edges between two sets of ranks that are all drawn: 64 times 64."""


def through(reading: RankReading) -> str:
    """Say in what a rank waits, for the edge's label."""
    wait = reading.doing.wait
    return f"in {wait.name}" if wait is not None else ""


def each_to_each(waiters: Sequence[RankReading], awaited: Sequence[RankReading]) -> Iterator[Edge]:
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
        yield Edge(waiter.node, target.node, through(waiter))


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
