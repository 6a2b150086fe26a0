"""A rank in a collective waits for every rank that is not in the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.divergence import find_divergence
from lightning_hangcheck.diagnosis.edges.drawing import each_to_each, groups_to_groups
from lightning_hangcheck.diagnosis.standings import record_of, standing_of
from lightning_hangcheck.diagnosis.waits import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.diagnosis.divergence import Divergence
    from lightning_hangcheck.diagnosis.scene import RankReading, Scene
    from lightning_hangcheck.model.verdict import Edge


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits in a collective for whom.

    If all ranks stand in collectives and their ways parted, they wait for those that departed; for
    each other, where nothing tells who did.
    """
    waiting = scene.waiting_in(COLLECTIVE)
    inside = {reading.rank for reading in waiting}
    outside = [reading for reading in scene.ranks.values() if reading.rank not in inside]
    divergence = find_divergence(scene)
    parted = set(divergence.operations) if divergence is not None else set()
    late = [reading for reading in outside if reading.rank not in parted]
    for members, awaited in _by_operation(waiting, late):
        yield from each_to_each(members, awaited)
    if divergence is None or late:
        return
    departed = [scene.ranks[rank] for rank in divergence.departed]
    rest = [scene.ranks[rank] for rank in sorted(parted) if rank not in divergence.departed]
    if rest:
        yield from each_to_each(rest, departed)
    else:
        yield from groups_to_groups(_sides(scene, divergence))


def _by_operation(
    waiting: Sequence[RankReading], late: Sequence[RankReading]
) -> Iterator[tuple[list[RankReading], Sequence[RankReading]]]:
    """Group ranks by the recorded operation they wait in, each with those that have not come to it.

    All that are late, where no record tells which of them belong there.
    """
    together: dict[tuple[str, int] | None, list[RankReading]] = {}
    for reading in waiting:
        standing = standing_of(reading)
        key = standing.numbered if standing is not None else None
        together.setdefault(key, []).append(reading)
    for operation, readings in together.items():
        awaited = [one for one in late if operation is None or _owes(one, *operation, readings[0])]
        yield readings, awaited or late


def _owes(reading: RankReading, group: str, seq: int, waiter: RankReading) -> bool:
    """Whether a rank belongs to the group, as far as known, and has not entered that operation."""
    theirs, own = record_of(waiter, group), record_of(reading, group)
    if theirs is not None and theirs.ranks and reading.rank not in theirs.ranks:
        return False
    return own is None or own.last_enqueued < seq


def _sides(scene: Scene, divergence: Divergence) -> list[list[RankReading]]:
    sides: dict[object, list[RankReading]] = {}
    for one in divergence.standings:
        side = (one.group, str(divergence.operations[one.rank]), one.reading.doing.frames)
        sides.setdefault(side, []).append(scene.ranks[one.rank])
    if len(sides) == 1:
        return [[reading] for side in sides.values() for reading in side]
    return list(sides.values())
