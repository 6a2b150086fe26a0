"""What other groups did where ranks of one part: groups that came the same way so far. Pure.

In a device mesh the groups of one dimension do the same, each by itself. Two ranks of a group have
no majority; what all other groups of their kind did under that number tells which of them departed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    Operation,
    operation_of,
    record_of,
    records,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.model.flight import CollectiveRecord

LEAST_ALIKE = 8
"""Operations before the one in question that must be the same: all groups begin with a few."""


def did_as_like_groups(
    job: JobReading, group: str, seq: int, here: Mapping[PendingCollective, Operation]
) -> frozenset[PendingCollective]:
    """Return the ranks that did what each other group of the same kind did under that number.

    Args:
        job: All ranks.
        group: In which ranks part.
        seq: Its number.
        here: What they do under it.

    Returns:
        None of them where there is no such group, or where these disagree.
    """
    own = next((record_of(one.reading, group) for one in here), None)
    if own is None:
        return frozenset()
    by_name = len({operation.name for operation in here.values()}) > 1
    did: set[Operation] = set()
    seen = {group}
    for reading in job.ranks.values():
        for record in records(reading):
            if record.group not in seen and _is_like(record, own, seq):
                seen.add(record.group)
                did |= {
                    _compared(operation_of(reading, entry), by_name=by_name)
                    for entry in record.entries
                    if entry.seq == seq
                }
    if len(did) != 1:
        return frozenset()
    return frozenset(
        one for one, operation in here.items() if _compared(operation, by_name=by_name) in did
    )


def _is_like(record: CollectiveRecord, own: CollectiveRecord, seq: int) -> bool:
    """Whether a group of other ranks, but as many, did the same before a number."""
    if len(record.ranks) != len(own.ranks) or record.ranks == own.ranks:
        return False
    theirs, ours = ({e.seq: e.op for e in one.entries if e.seq < seq} for one in (record, own))
    common = theirs.keys() & ours.keys()
    return len(common) >= LEAST_ALIKE and all(theirs[one] == ours[one] for one in common)


def _compared(operation: Operation, *, by_name: bool) -> Operation:
    """Stages of a pipeline send other sizes; where names tell ranks apart, these are left out."""
    sizes, dtypes = ((), ()) if by_name else (operation.sizes, operation.dtypes)
    return Operation(operation.name, sizes, dtypes)
