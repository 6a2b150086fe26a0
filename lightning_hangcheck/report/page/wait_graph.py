"""Who waits for whom: the graph of groups in equal standing, and where it is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.report.page.page_facts import waiting_alike
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text import name_ranks, short_path
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.report.page.page_facts import EqualRanks

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


WIDTH, HEIGHT = 210, 46
"""Of a node: 30 characters of 12 pixels in the smaller of its two lines."""
BETWEEN, BELOW = 26, 64
MARGIN = 14
MOST_BESIDE = 4
"""Nodes in a row; more of the same height go on below."""
ASIDE = (WIDTH // 2 + 2 * BETWEEN) * 4 // 3
"""How far beside the nodes an edge has its handles that passes by other rows."""
ROOM_ABOVE = 34
"""For the arcs between nodes of one row."""
LONGEST_TITLE, LONGEST_DETAIL, LONGEST_LABEL = 28, 32, 30


class PlacedNode(Struct, frozen=True, kw_only=True):
    """A node and its upper left corner."""

    node: GraphNode
    x: int
    y: int
    title: str
    detail: str


class PlacedEdge(Struct, frozen=True, kw_only=True):
    """An edge as the path of an SVG, and where the middle of its label stands."""

    edge: GraphEdge
    path: str
    x: int
    y: int
    label: str


class GraphDrawing(Struct, frozen=True, kw_only=True):
    """A whole graph, in pixels."""

    width: int
    height: int
    nodes: tuple[PlacedNode, ...]
    edges: tuple[PlacedEdge, ...]


def draw_graph(graph: WaitGraph) -> GraphDrawing:
    """Place a graph's nodes in rows, the end of the waiting below.

    Args:
        graph: With at least one node.
    """
    rows = _rows(graph)
    widest = max(map(len, rows))
    row_of = {node.key: number for number, row in enumerate(rows) for node in row}
    arcs = any(row_of[edge.source] == row_of[edge.target] for edge in graph.edges)
    room = ROOM_ABOVE if arcs else 0
    corners: dict[str, tuple[int, int]] = {}
    for number, members in enumerate(rows):
        start = MARGIN + (widest - len(members)) * (WIDTH + BETWEEN) // 2
        for column, node in enumerate(members):
            x = start + column * (WIDTH + BETWEEN)
            corners[node.key] = (x, MARGIN + room + number * (HEIGHT + BELOW))
    width = 2 * MARGIN + widest * (WIDTH + BETWEEN) - BETWEEN + (ASIDE if len(rows) > 2 else 0)
    return GraphDrawing(
        width=width,
        height=2 * (MARGIN + room) + len(rows) * (HEIGHT + BELOW) - BELOW,
        nodes=tuple(_placed(node, *corners[node.key]) for node in graph.nodes),
        edges=_edges(graph.edges, corners),
    )


def shortened(text: str, most: int) -> str:
    """Cut a text to so many characters, the last of which then says that there is more."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _rows(graph: WaitGraph) -> list[list[GraphNode]]:
    """Nodes of one height stand beside each other, as many as fit."""
    heights: dict[int, list[GraphNode]] = {}
    for node in graph.nodes:
        heights.setdefault(graph.heights.get(node.key, 0), []).append(node)
    return [
        members[first : first + MOST_BESIDE]
        for _, members in sorted(heights.items(), reverse=True)
        for first in range(0, len(members), MOST_BESIDE)
    ]


def _placed(node: GraphNode, x: int, y: int) -> PlacedNode:
    title, detail = shortened(node.title, LONGEST_TITLE), shortened(node.detail, LONGEST_DETAIL)
    return PlacedNode(node=node, x=x, y=y, title=title, detail=detail)


def _edges(
    edges: Sequence[GraphEdge], corners: Mapping[str, tuple[int, int]]
) -> tuple[PlacedEdge, ...]:
    """Labels of edges into one node stand at different heights, so that they do not meet."""
    into: dict[str, int] = {}
    placed = []
    for edge in edges:
        number = into[edge.target] = into.get(edge.target, -1) + 1
        path, x, y = _path(corners[edge.source], corners[edge.target], number)
        label = shortened(edge.through, LONGEST_LABEL)
        placed.append(PlacedEdge(edge=edge, path=path, x=x, y=y, label=label))
    return tuple(placed)


def _path(source: tuple[int, int], target: tuple[int, int], number: int) -> tuple[str, int, int]:
    (x, y), (to_x, to_y) = source, target
    middle, to_middle = x + WIDTH // 2, to_x + WIDTH // 2
    if source == target:
        left, right = middle - 40, middle + 40
        path = f"M{left} {y}C{left - 10} {y - 36} {right + 10} {y - 36} {right} {y - 3}"
        return path, middle, y - ROOM_ABOVE + 8
    if y == to_y:
        above = x < to_x
        edge_y = y if above else y + HEIGHT
        bow = edge_y + (-38 if above else 38)
        end = edge_y + (-3 if above else 3)
        path = f"M{middle} {edge_y}C{middle} {bow} {to_middle} {bow} {to_middle} {end}"
        return path, (middle + to_middle) // 2, edge_y + (-24 if above else 34)
    downwards = y < to_y
    start_y, end_y = (y + HEIGHT, to_y - 3) if downwards else (y, to_y + HEIGHT + 3)
    if abs(end_y - start_y) > BELOW:
        return _around(middle, start_y, to_middle, end_y)
    half = (start_y + end_y) // 2
    path = f"M{middle} {start_y}C{middle} {half} {to_middle} {half} {to_middle} {end_y}"
    part = 0.35 + 0.12 * (number % 4)
    bent = part * part * (3 - 2 * part)  # how far across a Bezier with these handles has come
    across = round(middle + (to_middle - middle) * bent)
    return path, across, round(start_y + (end_y - start_y) * part)


def _around(middle: int, start_y: int, to_middle: int, end_y: int) -> tuple[str, int, int]:
    """Past the rows between: a Bezier goes three quarters of the way to where its handles are."""
    beside = max(middle, to_middle) + ASIDE
    path = f"M{middle} {start_y}C{beside} {start_y} {beside} {end_y} {to_middle} {end_y}"
    return path, round((middle + to_middle) / 8 + beside * 3 / 4), (start_y + end_y) // 2
