"""Cases of several nodes on one clock, as far as their clocks are known against each other. Pure.

What a node's wall clock says decides nothing by itself: it may be hours off. Moments of two nodes
compare where the nodes have estimated how far their clocks are apart while they met, or where both
are on one machine, whose monotonic clock counts for both. Else each node's case is taken as it was
when it was looked at last, and which of two moments came first is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lightning_hangcheck.gather.node_view import rebased
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.text.moments import EPOCH, NANOSECONDS, read_utc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KNOWN = "known"


class NodeCase(Struct, frozen=True):
    """The case of one node.

    Attributes:
        source: What to call it in sentences.
        ahead_s: How far its wall clock is ahead of that of the others; None where that is not
            known, as of nodes that never met.
    """

    source: str
    case: Case
    ahead_s: float | None = None


class TimedCase(NamedTuple):
    """The case of one node with its times on the clock that all share.

    Attributes:
        clock: Cases of one number have clocks that are known against each other.
    """

    source: str
    case: Case
    clock: int


class _Moment(NamedTuple):
    """When a case was taken, on a clock of this name."""

    clock: str
    at_ns: int


def on_one_clock(nodes: Sequence[NodeCase]) -> list[TimedCase]:
    """Move all monotonic times to one clock, and order the cases: whose word counts comes first.

    That is the newest where clocks are known, else one of a later round, then as they are given.

    Args:
        nodes: At least one.
    """
    starts = _starts(nodes)
    moments = [_moment(node, starts, index) for index, node in enumerate(nodes)]
    groups: dict[str, list[int]] = {}
    for index, moment in enumerate(moments):
        groups.setdefault(moment.clock, []).append(index)
    for group in groups.values():
        group.sort(key=lambda index: -moments[index].at_ns)
    ordered = sorted(groups.values(), key=lambda group: -_newest_round(nodes, group))
    base_ns, found = nodes[ordered[0][0]].case.taken_ns, []
    for clock, group in enumerate(ordered):
        newest_ns = moments[group[0]].at_ns
        for index in group:
            case, ago_ns = nodes[index].case, newest_ns - moments[index].at_ns
            moved = rebased(case, base_ns - ago_ns - case.taken_ns)
            found.append(TimedCase(nodes[index].source, moved, clock))
    return found


def _moment(node: NodeCase, starts: Mapping[str, int], index: int) -> _Moment:
    machine, wall_ns = _machine(node), _wall_ns(node)
    if wall_ns is not None:
        return _Moment(KNOWN, wall_ns)
    if machine in starts:
        return _Moment(KNOWN, node.case.taken_ns + starts[machine])
    return _Moment(f"machine {machine}" if machine else f"node {index}", node.case.taken_ns)


def _starts(nodes: Sequence[NodeCase]) -> dict[str, int]:
    """Return when machines started, of those on which the clock of a node is known."""
    known = ((_machine(node), _wall_ns(node), node.case.taken_ns) for node in nodes)
    return {name: at - taken for name, at, taken in known if name and at is not None}


def _machine(node: NodeCase) -> str:
    """Name the start of the kernel: its containers have one monotonic clock."""
    return node.case.run.machine.partition("-")[0]


def _wall_ns(node: NodeCase) -> int | None:
    """Return when a case was taken, by the clock that the others are known against."""
    if node.ahead_s is None:
        return None
    try:
        since = read_utc(node.case.taken_at) - EPOCH
    except ValueError:
        return None
    return int((since.total_seconds() - node.ahead_s) * NANOSECONDS)


def _newest_round(nodes: Sequence[NodeCase], group: Sequence[int]) -> int:
    return max(nodes[index].case.run.round for index in group)
