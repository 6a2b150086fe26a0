"""What other groups did where ranks of one part: groups that came the same way so far. Pure.

In a device mesh the groups of one dimension do the same, each by itself. Two ranks of a group have
no majority; what all other groups of their kind did under that number tells which of them departed.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    Operation,
    call_of,
    operation_of,
    record_of,
    records,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.flight import CollectiveRecord

LEAST_ALIKE = 8
"""Operations before the one in question that must be the same: all groups begin with a few."""
MOST_COMPARED = 256
"""Groups: a mesh of a hundred thousand ranks has as many, of which few tell as much."""


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
    owner = next((one.reading for one in here if record_of(one.reading, group)), None)
    own = record_of(owner, group) if owner is not None else None
    if owner is None or own is None:
        return frozenset()
    came = _way(owner, own, seq)
    by_name = len({operation.name for operation in here.values()}) > 1
    did = {
        _compared(operation_of(reading, entry), by_name=by_name)
        for reading, record in islice(_other_groups(job, own), MOST_COMPARED)
        if record.ranks != own.ranks and _is_same(came, _way(reading, record, seq))
        for entry in record.entries
        if entry.seq == seq
    }
    if len(did) != 1:
        return frozenset()
    return frozenset(
        one for one, operation in here.items() if _compared(operation, by_name=by_name) in did
    )


def _other_groups(
    job: JobReading, own: CollectiveRecord
) -> Iterator[tuple[RankReading, CollectiveRecord]]:
    """Each other group of as many ranks, by the first of these that has a record of it."""
    seen = {own.group}
    for reading in job.ranks.values():
        for record in records(reading):
            if record.group not in seen and len(record.ranks) == len(own.ranks):
                seen.add(record.group)
                yield reading, record


def _way(reading: RankReading, record: CollectiveRecord, seq: int) -> dict[int, Hashable]:
    """What a rank did in a group before a number, each from where, or else with its sizes."""
    return {
        entry.seq: (entry.op, call_of(reading, entry).frames or entry.sizes)
        for entry in record.entries
        if entry.seq < seq
    }


def _is_same(one: Mapping[int, Hashable], other: Mapping[int, Hashable]) -> bool:
    common = one.keys() & other.keys()
    return len(common) >= LEAST_ALIKE and all(one[seq] == other[seq] for seq in common)


def _compared(operation: Operation, *, by_name: bool) -> Operation:
    """Stages of a pipeline send other sizes; where names tell ranks apart, these are left out."""
    sizes, dtypes = ((), ()) if by_name else (operation.sizes, operation.dtypes)
    return Operation(operation.name, sizes, dtypes)
