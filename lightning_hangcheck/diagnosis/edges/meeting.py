"""A rank in one of this package's guards waits for every rank that has not come to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.edges.drawing import each_to_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene
    from lightning_hangcheck.model.verdict import Edge


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits in a meeting for whom."""
    waiting = scene.waiting_in({"meeting"})
    inside = {reading.rank for reading in waiting}
    outside = [reading for reading in scene.ranks.values() if reading.rank not in inside]
    yield from each_to_each(waiting, outside)
