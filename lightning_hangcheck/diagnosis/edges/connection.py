"""A process that waits at a connection waits for its remote end: a process of the job or a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.blocked import blocked, nodes
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits for which remote end; one that accepts connections waits for anybody."""
    known = nodes(scene)
    for process in blocked(scene):
        for target in process.targets:
            if target.kind != "socket" or not target.name or target.call.startswith("accept"):
                continue
            through = f"in {target.call}"
            for holder in target.holders:
                yield Edge(process.node, known.get(holder.pid, f"pid:{holder.pid}"), through)
            if not target.holders:
                yield Edge(process.node, f"host:{target.name}", through)
