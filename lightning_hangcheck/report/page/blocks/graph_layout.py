"""Places the nodes and edges of a wait-for graph: who waits stands above what is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.page.blocks.wait_graph import GraphEdge, GraphNode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.report.page.blocks.wait_graph import WaitGraph

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
