"""The nodes of a job as a tree, its root the first node: who takes whose words. Pure.

Each node leaves its words where all may read them, so a way up that is lost is mended from above:
whoever takes a node's words takes those below it, too, while that one is not heard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST = 0
FAN_IN = 32


def below(node: int, nnodes: int) -> range:
    """Return the nodes right below one in the tree."""
    first = node * FAN_IN + 1
    return range(min(first, nnodes), min(first + FAN_IN, nnodes))


def is_below(node: int, top: int, nnodes: int) -> bool:
    """Whether a node is another one, or anywhere below it."""
    if not 0 <= node < nnodes:
        return False
    while node > top:
        node = (node - 1) // FAN_IN
    return node == top


def taken_by(
    node: int, nnodes: int, silent: Callable[[int], bool], *, judges: bool
) -> Iterator[int]:
    """Yield the nodes whose words one takes: those right below it, and below silent ones.

    Args:
        node: Who takes them.
        nnodes: How many there are.
        silent: Whether nothing is heard of a node.
        judges: It takes the words of all, in the place of the first node.
    """
    left = [FIRST] if judges else [node]
    for one in left:
        if one != node:
            yield one
        if one in (node, FIRST) or silent(one):
            left.extend(below(one, nnodes))
