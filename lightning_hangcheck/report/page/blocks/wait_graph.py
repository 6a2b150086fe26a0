"""The wait-for graph with ranks in equal standing as one node; culprits stand by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.report.page.equal_ranks import waiting_alike
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks, short_path
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.report.page.equal_ranks import EqualRanks

MOST_OPENED = 8
"""Culprits with a node each; more of them are grouped as the others are."""
MOST_GROUPS = 8
"""Of ranks; of more, those are one that wait alike, wherever they stand."""
MOST_NODES = 40


class GraphNode(Struct, frozen=True, kw_only=True):
    """A rank, a group of equal ranks, or something that they wait for.

    Attributes:
        key: Of the node within this graph.
        title: For example ``ranks 0-6``.
        detail: Where they stand; empty of what is no rank.
        rank: The first of them, None of what is no rank.
        is_culprit: They are named by the verdict.
        in_cycle: It waits for itself, by itself or through others.
    """

    key: str
    title: str
    detail: str = ""
    rank: int | None = None
    is_culprit: bool = False
    in_cycle: bool = False


class GraphEdge(Struct, frozen=True, kw_only=True):
    """One node waits for another, through what the label says."""

    source: str
    target: str
    through: str
    in_cycle: bool = False


class WaitGraph(Struct, frozen=True, kw_only=True):
    """Nodes and edges, and for each node how far above the end of the waiting it stands."""

    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    heights: dict[str, int] = {}


def wait_graph(verdict: Verdict, groups: Sequence[EqualRanks]) -> WaitGraph:
    """Collapse the verdict's graph.

    Args:
        verdict: With the edges.
        groups: Of its ranks.
    """
    nodes = _rank_nodes(verdict, groups if len(groups) <= MOST_GROUPS else waiting_alike(groups))
    key_of = {rank: key for key, (_, ranks) in nodes.items() for rank in ranks}
    throughs: dict[tuple[str, str], dict[str, None]] = {}
    for edge in verdict.wait_for:
        source, target = _key(edge.source, key_of), _key(edge.target, key_of)
        throughs.setdefault((source, target), {})[edge.through] = None
    named = {key: node for key, (node, _) in nodes.items()}
    for key in dict.fromkeys(key for pair in throughs for key in pair):
        named.setdefault(key, _other_node(key))
    kept = set(list(named)[:MOST_NODES])
    pairs = [pair for pair in throughs if kept.issuperset(pair)]
    heights, cycles = _heights_and_cycles(pairs, verdict, key_of)
    drawn = [named[key] for key in named if key in kept and (key in heights or key in nodes)]
    return WaitGraph(
        nodes=tuple(replace(node, in_cycle=node.key in cycles) for node in drawn),
        edges=tuple(
            GraphEdge(
                source=source,
                target=target,
                through=plain(_together(throughs[source, target])),
                in_cycle=cycles.get(source, -1) == cycles.get(target, -2),
            )
            for source, target in pairs
        ),
        heights={node.key: heights.get(node.key, 0) for node in drawn},
    )


def _rank_nodes(
    verdict: Verdict, groups: Sequence[EqualRanks]
) -> dict[str, tuple[GraphNode, tuple[int, ...]]]:
    opened = len(verdict.culprits) <= MOST_OPENED
    nodes = {}
    for group in groups:
        single = opened and group.situation.is_culprit
        for ranks in [(rank,) for rank in group.ranks] if single else [group.ranks]:
            key = f"ranks:{format_ranks(ranks)}"
            node = GraphNode(
                key=key,
                title=f"{name_ranks(ranks)} {group.situation.state[len(ranks) > 1]}",
                detail=plain(group.standing),
                rank=ranks[0],
                is_culprit=group.situation.is_culprit,
            )
            nodes[key] = (node, ranks)
    return nodes


def _key(node: str, key_of: Mapping[int, str]) -> str:
    kind, _, name = node.partition(":")
    if kind == "rank" and name.isdecimal():
        return key_of.get(int(name), node)
    return node


def _other_node(key: str) -> GraphNode:
    kind, _, name = key.partition(":")
    shown = short_path(name) if kind == "file" else name
    return GraphNode(key=key, title=plain(f"{kind} {shown}"))


def _together(throughs: Iterable[str]) -> str:
    several = list(throughs)
    more = f" and {len(several) - 2} more" if len(several) > 2 else ""
    return ", ".join(several[:2]) + more


def _heights_and_cycles(
    pairs: Sequence[tuple[str, str]], verdict: Verdict, key_of: Mapping[int, str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Longest way down to where the waiting ends, and which nodes wait for themselves.

    A group of ranks that wait for others of their group is no cycle unless all are culprits: those
    are where the graph ends.
    """
    if not pairs:
        return {}, {}
    import networkx  # 20 MB, which nobody pays who has no graph

    graph = networkx.DiGraph(pairs)
    whole = networkx.condensation(graph)
    blamed = {key_of[rank] for rank in verdict.culprits if rank in key_of}
    ranked = set(key_of.values())
    heights: dict[str, int] = {}
    cycles: dict[str, int] = {}
    below: dict[int, int] = {}
    for part in reversed(list(networkx.topological_sort(whole))):
        members = whole.nodes[part]["members"]
        below[part] = max((below[lower] + 1 for lower in whole.successors(part)), default=0)
        heights.update(dict.fromkeys(members, below[part]))
        turns = len(members) > 1 or any(graph.has_edge(key, key) for key in members)
        if turns and members & ranked <= blamed:
            cycles.update(dict.fromkeys(members, part))
    return heights, cycles
