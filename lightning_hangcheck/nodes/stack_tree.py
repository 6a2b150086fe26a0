"""Stacks as a prefix tree: calls that many stacks begin with are told once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.nodes.bounds import CALLS, NODES_OF_TREE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Frames = tuple[Frame, ...]
EMPTY = 0
"""The leaf of a stack without frames: the tree's root, which is no node of its own."""


class StackTree(Struct, frozen=True, array_like=True):
    """All stacks of a digest.

    Attributes:
        frames: Each call once.
        parents: Of node ``n + 1``, the node of its caller, `EMPTY` if it is outermost; always
            before the node itself.
        calls: Of the same node, its call: an index of ``frames``.
    """

    frames: Annotated[tuple[Frame, ...], CALLS] = ()
    parents: Annotated[tuple[int, ...], NODES_OF_TREE] = ()
    calls: Annotated[tuple[int, ...], NODES_OF_TREE] = ()

    def stacks(self, deepest: int) -> list[Frames]:
        """Return the stack that ends at each node, the empty one first.

        Args:
            deepest: Frames that a stack may have.

        Raises:
            ValueError: A node's caller or call is not there, or a stack is deeper.
        """
        if len(self.parents) != len(self.calls):
            raise ValueError("nodes of the stack tree lack a call")
        found: list[Frames] = [()]
        for parent, call in zip(self.parents, self.calls, strict=True):
            if not (0 <= parent < len(found) and 0 <= call < len(self.frames)):
                raise ValueError("a node of the stack tree names what is not there")
            if len(found[parent]) >= deepest:
                raise ValueError(f"a stack has more than {deepest} frames")
            found.append((*found[parent], self.frames[call]))
        return found


def pruned(tree: StackTree, leaves: Iterable[int]) -> tuple[StackTree, dict[int, int]]:
    """Return what of a tree leads to some of its nodes, and the new number of each node kept."""
    kept = {EMPTY}
    for leaf in leaves:
        node = leaf
        while node not in kept:
            kept.add(node)
            node = tree.parents[node - 1]
    here = {node: number for number, node in enumerate(sorted(kept))}
    calls: dict[int, int] = {}
    for node in sorted(kept - {EMPTY}):
        calls.setdefault(tree.calls[node - 1], len(calls))
    nodes = [(tree.parents[node - 1], tree.calls[node - 1]) for node in sorted(kept - {EMPTY})]
    frames = tuple(tree.frames[call] for call in calls)
    parents = tuple(here[parent] for parent, _ in nodes)
    return StackTree(frames, parents, tuple(calls[call] for _, call in nodes)), here


class StackTreeBuilder:
    """Builds a tree, stack by stack; nodes are numbered in the order of their first use."""

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._leaves: dict[Frames, int] = {(): EMPTY}

    def leaf(self, stack: Frames) -> int:
        """Add a stack, outermost call first, and return its node."""
        known = self._leaves.get(stack)
        if known is not None:
            return known
        node = EMPTY
        for frame in stack:
            call = self._frames.setdefault(frame, len(self._frames))
            node = self._nodes.setdefault((node, call), len(self._nodes) + 1)
        self._leaves[stack] = node
        return node

    def graft(self, tree: StackTree) -> Sequence[int]:
        """Add another tree, and return the node here of each node there."""
        calls = [self._frames.setdefault(one, len(self._frames)) for one in tree.frames]
        here = [EMPTY]
        for parent, call in zip(tree.parents, tree.calls, strict=True):
            key = here[parent], calls[call]
            here.append(self._nodes.setdefault(key, len(self._nodes) + 1))
        return here

    def tree(self) -> StackTree:
        """Return what was built so far."""
        return StackTree(
            frames=tuple(self._frames),
            parents=tuple(parent for parent, _ in self._nodes),
            calls=tuple(call for _, call in self._nodes),
        )
