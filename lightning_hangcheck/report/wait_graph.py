"""The wait-for graph with equal ranks as one node, and its layout for drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text import EqualRanks, Situation, name_ranks, short_path
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.report.page_facts import PageFacts

MOST_GROUPS = 8  # With more groups, those that wait for the same are merged, wherever they are.
WIDTH, HEIGHT = 210, 46  # Of a node: 30 characters of 12 pixels in the smaller of its two lines.
BETWEEN, BELOW = 26, 64
MARGIN = 14
MOST_IN_A_ROW = 4  # Nodes in a row; more of the same height continue below.
ASIDE = (WIDTH // 2 + 2 * BETWEEN) * 4 // 3
"""Horizontal distance of the Bezier handles of an edge that passes other rows."""
ROOM_ABOVE = 34  # For the arcs between nodes of one row.


class GraphNode(NamedTuple):
    """A rank, a group of equal ranks, or something that they wait for.

    Attributes:
        detail: Where the ranks are; empty if the node is no rank.
        rank: The first rank; None if the node is no rank.
        in_cycle: Whether the node waits for itself, directly or through others.
        height: Distance from the end of the waiting.
    """

    key: str
    title: str
    detail: str = ""
    rank: int | None = None
    is_culprit: bool = False
    in_cycle: bool = False
    height: int = 0


class GraphEdge(NamedTuple):
    """One node waits for another; ``through`` is the label."""

    source: str
    target: str
    through: str
    in_cycle: bool


def wait_graph(facts: PageFacts) -> tuple[list[GraphNode], list[GraphEdge]]:
    """Reduce the verdict's graph: equal ranks become one node."""
    groups, culprits = facts.groups, facts.verdict.culprits
    if len(groups) > MOST_GROUPS:  # merge groups that wait for the same; their place is left out
        merged: dict[Situation, list[EqualRanks]] = {}
        for group in groups:
            alike = group.situation._replace(place=("", ""), phase="")
            merged.setdefault(alike, []).append(group)
        groups = tuple(
            same[0]
            if len(same) == 1
            else EqualRanks(
                alike, tuple(sorted(rank for group in same for rank in group.ranks)), []
            )
            for alike, same in merged.items()
        )
    nodes: dict[str, GraphNode] = {}
    key_of: dict[str, str] = {}
    only_wait = set()
    for group in groups:
        is_culprit = group.situation.is_culprit
        single = is_culprit and len(culprits) <= 8
        for ranks in [(rank,) for rank in group.ranks] if single else [group.ranks]:
            key = f"ranks:{format_ranks(ranks)}"
            title = f"{name_ranks(ranks)} {group.situation.state[len(ranks) > 1]}"
            detail = plain(group.situation.location)
            nodes[key] = GraphNode(key, title, detail, ranks[0], is_culprit)
            key_of |= {f"rank:{rank}": key for rank in ranks}
            only_wait |= set() if any(rank in culprits for rank in ranks) else {key}
    ranked = set(nodes)
    throughs: dict[tuple[str, str], dict[str, None]] = {}
    for edge in facts.verdict.wait_for:
        pair = key_of.get(edge.source, edge.source), key_of.get(edge.target, edge.target)
        throughs.setdefault(pair, {})[edge.through] = None
    for key in (key for pair in throughs for key in pair):
        kind, _, name = key.partition(":")
        shown = short_path(name) if kind == "file" else name
        nodes.setdefault(key, GraphNode(key, plain(f"{kind} {shown}")))
    kept = set(list(nodes)[:40])
    pairs = [pair for pair in throughs if kept.issuperset(pair)]
    heights: dict[str, int] = {}  # the longest path to an end of the waiting
    cycles: dict[str, int] = {}
    if pairs:
        import networkx  # 20 MB, loaded only for a graph

        graph = networkx.DiGraph(pairs)
        whole = networkx.condensation(graph)
        for height, parts in enumerate(networkx.topological_generations(whole.reverse())):
            for part in parts:
                members = whole.nodes[part]["members"]
                heights.update(dict.fromkeys(members, height))
                turns = len(members) > 1 or any(graph.has_edge(key, key) for key in members)
                # ranks that wait within their group are a cycle only if all are culprits
                if turns and members.isdisjoint(only_wait):
                    cycles.update(dict.fromkeys(members, part))
    edges = []
    for source, target in pairs:
        names = list(throughs[source, target])
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        in_cycle = cycles.get(source, -1) == cycles.get(target, -2)
        edges.append(GraphEdge(source, target, plain(", ".join(names[:2]) + more), in_cycle))
    drawn = [
        node._replace(in_cycle=key in cycles, height=heights.get(key, 0))
        for key, node in nodes.items()
        if key in kept and (key in heights or key in ranked)
    ]
    return drawn, edges


def draw_graph(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> dict[str, Any]:
    """Lay out at least one node in rows; the end of the waiting is at the bottom.

    Returns:
        In pixels: width and height; nodes with their upper left corners; edges with their SVG path
        and the centre of their label.
    """
    heights: dict[int, list[GraphNode]] = {}
    for node in nodes:
        heights.setdefault(node.height, []).append(node)
    rows = [
        members[first : first + MOST_IN_A_ROW]
        for _, members in sorted(heights.items(), reverse=True)
        for first in range(0, len(members), MOST_IN_A_ROW)
    ]
    widest = max(map(len, rows))
    row_of = {node.key: number for number, row in enumerate(rows) for node in row}
    arcs = any(row_of[edge.source] == row_of[edge.target] for edge in edges)
    room = ROOM_ABOVE if arcs else 0
    corners: dict[str, tuple[int, int]] = {}
    for number, members in enumerate(rows):
        start = MARGIN + (widest - len(members)) * (WIDTH + BETWEEN) // 2
        for column, node in enumerate(members):
            x = start + column * (WIDTH + BETWEEN)
            corners[node.key] = (x, MARGIN + room + number * (HEIGHT + BELOW))
    into: dict[str, int] = {}
    drawn = []
    for edge in edges:
        # labels of edges into one node get different heights, to avoid overlap
        number = into[edge.target] = into.get(edge.target, -1) + 1
        drawn.append((edge, *_path(corners[edge.source], corners[edge.target], number)))
    aside = ASIDE if len(rows) > 2 else 0
    return {
        "width": 2 * MARGIN + widest * (WIDTH + BETWEEN) - BETWEEN + aside,
        "height": 2 * (MARGIN + room) + len(rows) * (HEIGHT + BELOW) - BELOW,
        "nodes": [(node, *corners[node.key]) for node in nodes],
        "edges": drawn,
    }


def _path(start: tuple[int, int], end: tuple[int, int], number: int) -> tuple[str, int, int]:
    (x, y), (to_x, to_y) = start, end
    middle, to_middle = x + WIDTH // 2, to_x + WIDTH // 2
    if start == end:
        left, right = middle - 40, middle + 40
        path = f"M{left} {y}C{left - 10} {y - 36} {right + 10} {y - 36} {right} {y - 3}"
        return path, middle, y - ROOM_ABOVE + 8
    if y == to_y:
        sign, edge_y = (-1, y) if x < to_x else (1, y + HEIGHT)
        bow, tip = edge_y + 38 * sign, edge_y + 3 * sign
        path = f"M{middle} {edge_y}C{middle} {bow} {to_middle} {bow} {to_middle} {tip}"
        return path, (middle + to_middle) // 2, edge_y + (-24 if sign < 0 else 34)
    start_y, end_y = (y + HEIGHT, to_y - 3) if y < to_y else (y, to_y + HEIGHT + 3)
    half = (start_y + end_y) // 2
    if abs(end_y - start_y) > BELOW:
        # around the rows between: a Bezier reaches three quarters of the distance to its handles
        aside = max(middle, to_middle) + ASIDE
        path = f"M{middle} {start_y}C{aside} {start_y} {aside} {end_y} {to_middle} {end_y}"
        return path, round((middle + to_middle) / 8 + aside * 3 / 4), half
    path = f"M{middle} {start_y}C{middle} {half} {to_middle} {half} {to_middle} {end_y}"
    part = 0.35 + 0.12 * (number % 4)
    bent = part * part * (3 - 2 * part)  # horizontal share that such a Bezier has covered here
    across = round(middle + (to_middle - middle) * bent)
    return path, across, round(start_y + (end_y - start_y) * part)
