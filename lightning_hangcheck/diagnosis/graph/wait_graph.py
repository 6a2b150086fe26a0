"""The wait-for graph: where it ends stand the culprits."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.diagnosis.graph import process_edges, rank_edges
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import networkx

    from lightning_hangcheck.diagnosis.divergence.divergence import Divergence
    from lightning_hangcheck.diagnosis.job import JobReading

    Link = tuple[str, str]
    """A node, and one for which it waits."""

BUILDERS: tuple[Callable[[JobReading], Iterable[Edge]], ...] = (
    rank_edges.rendezvous_edges,
    rank_edges.guard_edges,
    rank_edges.store_edges,
    process_edges.dataloader_edges,
    process_edges.kernel_edges,
    process_edges.shared_memory_edges,
    process_edges.thread_lock_edges,
)
"""One for each kind of fact; a new fact adds its builder here."""
OPEN_BUILDERS: tuple[Callable[[JobReading], Iterable[Edge]], ...] = (
    process_edges.open_kernel_edges,
)
"""Waits that show who could end them, but not that anything is due: a service sits in them for as
long as nobody asks it anything."""


class WaitGraph(Struct, frozen=True, kw_only=True):
    """Who waits for whom, and where that ends.

    Attributes:
        ends: Ranks where the graph ends: they, or their workers, wait for no other rank, or only
            for each other.
        waiters: All other ranks in it.
        between_ranks: Whether any rank waits for another one, not only for a worker or a store;
            waits of `OPEN_BUILDERS` alone don't count.
        circles: Ranks that wait for each other and for nobody else, by each of them.
    """

    edges: tuple[Edge, ...] = ()
    ends: tuple[int, ...] = ()
    waiters: tuple[int, ...] = ()
    between_ranks: bool = False
    circles: dict[int, tuple[int, ...]] = {}

    def leading_to(self, ranks: Iterable[int]) -> int:
        """Count the ranks that wait for any of these, however indirectly, these included."""
        leading = _following((edge.target, edge.source) for edge in self.edges)
        nodes = {f"rank:{rank}" for rank in ranks}
        found = nodes | _reachable(leading, *nodes)
        return len(_ranks(found))

    def cycle(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that wait for each other with this one, directly or through others.

        Returns:
            None of them where anything that it waits for does not wait for it in turn; it alone
            where it waits for itself.
        """
        return self.circles.get(rank, ())


def build_graph(
    job: JobReading,
    divergence: Divergence | None,
    awaited: Mapping[int, tuple[int, ...]],
) -> WaitGraph:
    """Draw all edges and find the ends: the sinks of the graph's condensation.

    Args:
        job: All ranks.
        divergence: Where their ways part, if they do.
        awaited: For whom each waits in a collective, as `awaited_ranks` returns it.
    """
    between = rank_edges.collective_edges(job, divergence, awaited)
    found = dict.fromkeys(chain(between, *(build(job) for build in BUILDERS)))
    firm = tuple(found)
    found.update(dict.fromkeys(edge for build in OPEN_BUILDERS for edge in build(job)))
    edges = tuple(found)
    if not edges:
        return WaitGraph()
    ends, circles = _ends(edges)
    everyone = _ranks({node for edge in edges for node in (edge.source, edge.target)})
    return WaitGraph(
        edges=edges,
        ends=tuple(sorted(ends)),
        waiters=tuple(sorted(everyone - ends)),
        between_ranks=_joins_ranks(firm),
        circles=circles,
    )


def _ends(edges: Sequence[Edge]) -> tuple[set[int], dict[int, tuple[int, ...]]]:
    """Find the ranks of all sinks, and of those in which ranks wait for each other.

    A rank for which nobody waits, and that waits for other ranks alone, is in neither: of a
    hundred thousand that wait for one, none need be drawn.
    """
    awaited = {edge.target for edge in edges}
    links = [
        (edge.source, edge.target)
        for edge in edges
        if edge.source in awaited or _rank(edge.target) is None
    ]
    following, preceding = _following(links), _following(_turned(links))
    circles = _circles(links)
    closed = [one for one in circles if all(one.issuperset(following[node]) for node in one)]
    sinks = [{node} for node in awaited if node not in following] + closed
    circle_of = {node: one for one in circles for node in one}
    ends = set().union(*(_nearest_ranks(sink, preceding, circle_of) for sink in sinks))
    waiting = ([node for node in one if node.startswith("rank:")] for one in closed)
    told = [tuple(sorted(_ranks(nodes))) for nodes in waiting]
    return ends, {rank: circle for circle in told for rank in circle}


def _circles(links: Sequence[Link]) -> list[set[str]]:
    """Return the sets of nodes that lead to each other, a node that leads to itself alone too.

    What nothing leads to, or what leads nowhere, is in none, and neither is what remains so once
    those are left out: of a hundred thousand ranks mostly all. networkx is imported for the rest:
    it costs 19 MB, which the watcher of a healthy job need not pay.
    """
    left = _turned(_without_starts(_turned(_without_starts(links))))
    if not left:
        return []
    import networkx

    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_edges_from(left)
    found: Iterable[set[str]] = networkx.strongly_connected_components(graph)
    to_itself = {node for node, after in left if node == after}
    return [one for one in found if len(one) > 1 or not one.isdisjoint(to_itself)]


def _without_starts(links: Sequence[Link]) -> Sequence[Link]:
    """Return the links but those of nodes to which nothing leads, until something leads to each."""
    following = _following(links)
    leading = Counter(after for _, after in links)
    pending = [node for node in following if node not in leading]
    for node in pending:
        for after in following.get(node, ()):
            leading[after] -= 1
            if not leading[after]:
                pending.append(after)
    gone = set(pending)
    return [link for link in links if link[0] not in gone]


def _turned(links: Iterable[Link]) -> list[Link]:
    return [(after, before) for before, after in links]


def _nearest_ranks(
    sink: Iterable[str],
    preceding: Mapping[str, Sequence[str]],
    circle_of: Mapping[str, Iterable[str]],
) -> set[int]:
    """Return a sink's ranks; where it has none (a store, a file), those that lead to it."""
    found: set[int] = set()
    pending, met = [sink], set(sink)
    for members in pending:
        ranks = _ranks(members)
        found |= ranks
        if not ranks:
            before = {one for node in members for one in preceding.get(node, ())} - met
            met |= before
            pending += [circle_of.get(node, (node,)) for node in before]
    return found


def _ranks(nodes: Iterable[str]) -> set[int]:
    return {rank for node in nodes if (rank := _rank(node)) is not None}


def _joins_ranks(edges: Iterable[Edge]) -> bool:
    """Whether a rank waits for another one, directly or through files and processes."""
    links = []
    for edge in edges:
        source, target = _rank(edge.source), _rank(edge.target)
        if None not in (source, target) and source != target:
            return True
        if None in (source, target):
            links.append((edge.source, edge.target))
    if not _ranks({target for _, target in links}):
        return False
    following = _following(links)
    return any(
        _rank(node) not in (None, rank)
        for source in following
        if (rank := _rank(source)) is not None
        for node in _reachable(following, source)
    )


def _following(links: Iterable[Link]) -> dict[str, list[str]]:
    following: dict[str, list[str]] = {}
    for source, target in links:
        following.setdefault(source, []).append(target)
    return following


def _reachable(following: Mapping[str, Sequence[str]], *start: str) -> set[str]:
    """Return the nodes that links lead to from any of these, however indirectly."""
    found: set[str] = set()
    pending = list(start)
    for node in pending:
        new = [one for one in following.get(node, ()) if one not in found]
        found.update(new)
        pending += new
    return found


def _rank(node: str) -> int | None:
    """Return the rank that a node is, or that owns it."""
    kind, _, name = node.partition(":")
    return int(name.partition("/")[0]) if kind in ("rank", "worker") else None
