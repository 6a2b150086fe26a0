"""A rank whose threads stand in locks that only its own threads can release waits for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.thread_locks import read_locks
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw which rank waits for its own threads."""
    for reading in scene.ranks.values():
        if reading.activity == "idle" and read_locks(reading.view) is not None:
            yield Edge(reading.node, reading.node, "for a lock of its own threads")
