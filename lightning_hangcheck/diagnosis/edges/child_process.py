"""A process that waits for the end of a child waits for that child."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.blocked import blocked, nodes
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits for which child to end."""
    known = nodes(scene)
    for process in blocked(scene):
        for target in process.targets:
            if target.kind == "process":
                node = known.get(int(target.name), f"pid:{target.name}")
                yield Edge(process.node, node, "for its end")
