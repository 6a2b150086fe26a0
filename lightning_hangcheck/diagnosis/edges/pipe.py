"""A process that reads an empty pipe, or writes a full one, waits for the other end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.blocked import blocked, nodes
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits at a pipe for which process of the job."""
    known = nodes(scene)
    for process in blocked(scene):
        for target in process.targets:
            if target.kind == "pipe":
                for holder in target.holders:
                    node = known.get(holder.pid, f"pid:{holder.pid}")
                    yield Edge(process.node, node, f"in {target.call} on {target.name}")
