"""The verdict's table of process groups on which ranks disagree or wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.divergence import find_divergence
from lightning_hangcheck.diagnosis.standings import Standing, records, standings
from lightning_hangcheck.model.ranges import format_ranks
from lightning_hangcheck.model.verdict import CollectiveState

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.scene import Scene

MOST_GROUPS = 64


def collectives(scene: Scene) -> tuple[CollectiveState, ...]:
    """Return the group in which the ranks' ways part, then each in which a rank waits."""
    rows: dict[tuple[str, int], CollectiveState] = {}
    divergence = find_divergence(scene)
    if divergence is not None and divergence.group is not None:
        seq = (divergence.last_agreed or 0) + 1
        told = {rank: str(one) for rank, one in divergence.operations.items()}
        rows[divergence.group, seq] = _row(scene, divergence.group, seq, told)
    waiting = standings(scene)
    for one in waiting:
        key = one.numbered
        if key is not None and key not in rows:
            rows[key] = _row(scene, *key, _those_at(waiting, key))
    return tuple(rows.values())[:MOST_GROUPS]


def _those_at(waiting: tuple[Standing, ...], key: tuple[str, int]) -> dict[int, str]:
    return {one.rank: str(one.operation) for one in waiting if one.numbered == key}


def _row(scene: Scene, group: str, seq: int, told: dict[int, str]) -> CollectiveState:
    ops: dict[str, list[int]] = {}
    for rank, operation in told.items():
        ops.setdefault(operation, []).append(rank)
    known = {
        member
        for rank, reading in scene.ranks.items()
        for record in records(reading)
        if record.group == group
        for member in (rank, *record.ranks)
    }
    return CollectiveState(
        group=group,
        ranks=format_ranks(known),
        seq=seq,
        ops={operation: format_ranks(ranks) for operation, ranks in ops.items()},
    )
