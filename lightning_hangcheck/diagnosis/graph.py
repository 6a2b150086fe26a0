"""The wait-for graph: where it ends stand the culprits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lightning_hangcheck.diagnosis.edges import collective, dataloader, meeting, rendezvous
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import networkx

    from lightning_hangcheck.diagnosis.scene import Scene

BUILDERS: tuple[Callable[[Scene], Iterable[Edge]], ...] = (
    collective.edges,
    rendezvous.edges,
    meeting.edges,
    dataloader.edges,
)
"""One for each kind of fact; a new fact adds its builder here."""


class WaitGraph(Struct, frozen=True, kw_only=True):
    """Who waits for whom, and where that ends.

    Attributes:
        ends: Ranks where the graph ends: they, or their workers, wait for no other rank, or only
            for each other.
        waiters: All other ranks in it.
        between_ranks: Whether any rank waits for another one, not only for a worker or a store.
    """

    edges: tuple[Edge, ...] = ()
    ends: tuple[int, ...] = ()
    waiters: tuple[int, ...] = ()
    between_ranks: bool = False


def build_graph(scene: Scene) -> WaitGraph:
    """Draw all edges and find the ends: the sinks of the graph's condensation."""
    edges = tuple(dict.fromkeys(edge for build in BUILDERS for edge in build(scene)))
    if not edges:
        return WaitGraph()
    ends = _ends(edges)
    pairs = [(_rank(edge.source), _rank(edge.target)) for edge in edges]
    everyone = {rank for pair in pairs for rank in pair if rank is not None}
    return WaitGraph(
        edges=edges,
        ends=tuple(sorted(ends)),
        waiters=tuple(sorted(everyone - ends)),
        between_ranks=any(None not in pair and pair[0] != pair[1] for pair in pairs),
    )


def _ends(edges: Iterable[Edge]) -> set[int]:
    """Find the ranks of all sinks.

    networkx is imported here: it costs 19 MB, which the watcher of a healthy job need not pay.
    """
    import networkx

    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_edges_from((edge.source, edge.target) for edge in edges)
    condensed = networkx.condensation(graph)
    sinks = [node for node in condensed if condensed.out_degree(node) == 0]
    return set().union(*(_nearest_ranks(condensed, sink) for sink in sinks))


def _nearest_ranks(condensed: networkx.DiGraph[Any], component: int) -> set[int]:
    """Return a component's ranks; where it has none (a store, a file), those that lead to it."""
    ranks = {
        rank for node in condensed.nodes[component]["members"] if (rank := _rank(node)) is not None
    }
    if ranks:
        return ranks
    return set().union(
        *(_nearest_ranks(condensed, source) for source in condensed.predecessors(component))
    )


def _rank(node: str) -> int | None:
    """Return the rank that a node is, or that owns it."""
    kind, _, name = node.partition(":")
    return int(name.partition("/")[0]) if kind in ("rank", "worker") else None
