"""Who walked past an operation that another rank started, went on from, and waits for now?

Two groups need not be used in one order by the threads of a rank, so the newest of each contradict
nothing. But a rank that entered a later operation of the one group, and never that of the other,
has passed the place where it belongs. That it belongs there, earlier steps tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.diagnosis.divergence.attribution import SURE_CONTEXT, expected_next
from lightning_hangcheck.diagnosis.divergence.parting_number import Step
from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    call_of,
    operation_of,
    record_of,
    records,
    way_in,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.model.flight import CollectiveEntry

    Entered = tuple[str, CollectiveEntry]


class SkippedOperation(Struct, frozen=True):
    """An operation of a group, and the ranks that walked past it."""

    group: str
    seq: int
    passed_by: tuple[int, ...]


def skipped_operation(waiting: Sequence[PendingCollective]) -> SkippedOperation | None:
    """Find an operation that some wait for and others walked past; None where steps tell of none.

    Args:
        waiting: Ranks that wait only for each other.
    """
    found = (_skipped(one, waiting) for one in waiting if one.group is not None)
    return next((skipped for skipped in found if skipped is not None), None)


def entered(pending: PendingCollective) -> list[Entered]:
    """Return what a rank entered in all its groups, with their names, oldest first."""
    every = (
        (record.group, entry) for record in records(pending.reading) for entry in record.entries
    )
    return sorted(every, key=lambda pair: pair[1].created_ns)


def _skipped(
    pending: PendingCollective, waiting: Sequence[PendingCollective]
) -> SkippedOperation | None:
    every, group, seq = entered(pending), pending.group or "", pending.seq or 0
    at = next((i for i, one in enumerate(every) if (one[0], one[1].seq) == (group, seq)), None)
    if at is None:
        return None
    later = next((one for one in every[at + 1 :] if one[0] != group), None)
    if later is None or not _belongs_there(pending, every[: at + 1], later):
        return None
    passed = tuple(
        one.rank
        for one in waiting
        if _last_entered(one, group) in range(seq) and _last_entered(one, later[0]) >= later[1].seq
    )
    return SkippedOperation(group, seq, passed) if passed else None


def _belongs_there(pending: PendingCollective, way: Sequence[Entered], later: Entered) -> bool:
    """Whether earlier steps had it there, and not what came later, however long a step is."""
    groups = (way[-1][0], later[0])
    *before, own, other = [_step(pending, one) for one in (*way, later) if one[0] in groups]
    return expected_next(before, (own, other), SURE_CONTEXT, len(before)) == own


def _step(pending: PendingCollective, one: Entered) -> tuple[str, Step]:
    group, entry = one
    call = call_of(pending.reading, entry)
    return group, Step(operation_of(pending.reading, entry), way_in(call.frames))


def _last_entered(pending: PendingCollective, group: str) -> int:
    """Return the number of the newest operation of a group, -1 where nothing is known of it."""
    record = record_of(pending.reading, group)
    return record.last_enqueued if record is not None else -1
