"""A rank in a collective waits for every rank that is not in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.edges.drawing import each_to_each, groups_to_groups
from lightning_hangcheck.diagnosis.standing import lone_rank, standing_apart
from lightning_hangcheck.diagnosis.waits import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene
    from lightning_hangcheck.model.verdict import Edge


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits in a collective for whom.

    If all ranks stand in collectives, those that stand at different places wait for each other:
    they cannot all be in the same one. One rank alone against a majority is the one that departed.
    """
    waiting = scene.waiting_in(COLLECTIVE)
    inside = {reading.rank for reading in waiting}
    outside = [reading for reading in scene.ranks.values() if reading.rank not in inside]
    if outside:
        yield from each_to_each(waiting, outside)
        return
    lone = lone_rank(waiting)
    if lone is not None:
        yield from each_to_each([one for one in waiting if one is not lone], [lone])
        return
    groups = standing_apart(waiting)
    if len(groups) > 1:
        yield from groups_to_groups(groups)
