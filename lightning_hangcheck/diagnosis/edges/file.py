"""A process that waits for a file, or for the lock on one, waits for whoever holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.blocked import blocked, nodes
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene

THROUGH = {"lock": "for the lock", "file": "in file input or output", "fifo": "for its other end"}


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits for which file, and who holds that."""
    known = nodes(scene)
    for process in blocked(scene):
        for target in process.targets:
            if target.kind in THROUGH and target.name:
                file = f"file:{target.name}"
                yield Edge(process.node, file, THROUGH[target.kind])
                for holder in target.holders:
                    yield Edge(file, known.get(holder.pid, f"pid:{holder.pid}"), "held by")
