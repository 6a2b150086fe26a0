"""Ranks that wait for each other in different collectives: since when, in which, and who diverged.

Two ranks with different operations under one number of one group have parted for good, whatever any
clock says; a rank that has not come yet, or that moves, has not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.divergence.attribution import Basis, find_diverged
from lightning_hangcheck.diagnosis.divergence.awaited_ranks import (
    closed_circle,
    ends_of,
    without_message,
)
from lightning_hangcheck.diagnosis.divergence.like_groups import did_as_like_groups
from lightning_hangcheck.diagnosis.divergence.own_pattern import departed_in_messages
from lightning_hangcheck.diagnosis.divergence.parting_number import (
    History,
    Step,
    history_of,
    parting_number,
    steps_at,
    steps_before,
)
from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    PAIRED,
    UNRECORDED,
    Operation,
    PendingCollective,
    is_collective_code,
    records,
    still_pending,
    way_in,
    ways_of,
)
from lightning_hangcheck.diagnosis.divergence.skipped_operation import (
    SkippedOperation,
    entered,
    skipped_operation,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.model.evidence import Frame

    Awaited = Mapping[int, tuple[int, ...]]
    """For whom each rank waits, as `awaited_ranks` tells it."""

Key = Hashable
FEWEST = 2
LEFT_OUT = Operation("no such operation")
"""What a rank did instead that walked past an operation, by its record."""


class Divergence(Struct, frozen=True, kw_only=True):
    """Where the ranks' ways part.

    Attributes:
        group: Process group in which they part; None where only frames tell.
        seq: Number in that group under which they part; None where only frames tell.
        last_agreed: Number of the last operation of that group that all had in common; None where
            that is too long ago to be known.
        operations: What each rank does instead.
        diverged: Ranks that left the common way; all where nothing tells.
        basis: Why these.
        proven: The flight record shows it; else only frames do.
    """

    pending_collectives: tuple[PendingCollective, ...]
    operations: dict[int, Operation]
    diverged: tuple[int, ...]
    basis: Basis
    group: str | None = None
    seq: int | None = None
    last_agreed: int | None = None
    proven: bool = False

    @property
    def same_way(self) -> bool:
        """Whether all ranks came to their operation through the same lines of code."""
        ways = {way_in(way) for way in ways_of(self.pending_collectives)}
        return len(ways) == 1 and () not in ways


def find_divergence(
    job: JobReading, pending: Mapping[int, PendingCollective], awaited: Awaited
) -> Divergence | None:
    """Find where the ranks' ways part; None where they don't, or where it cannot be told.

    Args:
        job: All ranks.
        pending: Where they wait, as `pending_collectives` returns it.
        awaited: For whom they wait there.
    """
    waiting = still_pending(pending)
    if len(waiting) < FEWEST:
        return None
    recorded = [one for one in waiting if one.reading.view.flight is not None]
    parted = _parted_by_number(job, recorded)
    if parted is not None:
        return parted
    if len(waiting) < len(job.ranks) or job.elsewhere:
        waiting = _helpless(awaited, waiting)
    if len(waiting) < FEWEST:
        return None
    if {one.operation.name for one in waiting} <= PAIRED:
        return _by_messages(job, awaited, waiting)
    if len(recorded) == len(waiting):
        return _parted_by_group(job, awaited, [one for one in waiting if _is_known(one)])
    return _parted_by_frames(job, waiting)


def _parted_by_number(job: JobReading, waiting: Sequence[PendingCollective]) -> Divergence | None:
    """Find the first number of a group under which two ranks have different operations."""
    known: dict[frozenset[int], int | None] = {}
    for group, histories in sorted(_histories(waiting).items()):
        different = frozenset(map(id, histories.values()))
        if different not in known:
            known[different] = parting_number(histories) if len(different) > 1 else None
        parted = known[different]
        if parted is not None:
            return _by_number(job, group, parted, histories)
    return None


def _histories(
    waiting: Sequence[PendingCollective],
) -> dict[str, dict[PendingCollective, History]]:
    """Return what ranks did in each group in which one waits; equal records share one history."""
    found: dict[str, dict[PendingCollective, History]] = {
        one.group: {} for one in waiting if one.group is not None
    }
    known: dict[tuple[int, int], History] = {}
    for one in waiting:
        for record in records(one.reading):
            if record.group in found:
                key = id(record.entries), id(_sites(one))
                if key not in known:
                    known[key] = history_of(one, record)
                found[record.group][one] = known[key]
    return found


def _sites(pending: PendingCollective) -> object:
    flight = pending.reading.view.flight
    return flight.sites if flight is not None else None


def _by_number(
    job: JobReading, group: str, seq: int, histories: dict[PendingCollective, History]
) -> Divergence:
    steps = steps_at(histories, seq)
    before = steps_before(max(histories.values(), key=len), seq, steps.values())
    here = {replace(one, way=_way_to(one, seq, step)): step for one, step in steps.items()}
    by_kind: dict[PendingCollective, Key] = {one: step.operation for one, step in here.items()}
    keys = by_kind if len(set(by_kind.values())) > 1 else here
    diverged, basis = find_diverged(job.case.code, keys, lambda one: (before, here[one]))
    operations = {one: step.operation for one, step in here.items()}
    if basis != "majority":
        as_others = did_as_like_groups(job, group, seq, operations)
        if as_others and len(as_others) < len(here):
            diverged = tuple(sorted(one.rank for one in here if one not in as_others))
            basis = "like groups"
    return Divergence(
        pending_collectives=tuple(here),
        operations={one.rank: operation for one, operation in operations.items()},
        diverged=diverged,
        basis=basis,
        group=group,
        seq=seq,
        last_agreed=seq - 1 if before or seq == 1 else None,
        proven=True,
    )


def _way_to(pending: PendingCollective, seq: int, step: Step) -> tuple[Frame, ...]:
    """Return the frames that led to an operation; where they are not known, those that are."""
    return pending.way if pending.seq == seq else step.called_from or pending.way


def _helpless(
    awaited: Awaited, waiting: Sequence[PendingCollective]
) -> tuple[PendingCollective, ...]:
    """Return the ranks that wait only for each other, by what torch's record tells of them all."""
    circle = closed_circle(awaited)
    return tuple(
        one for one in waiting if one.rank in circle and one.reading.view.flight is not None
    )


def _by_messages(
    job: JobReading, awaited: Awaited, waiting: Sequence[PendingCollective]
) -> Divergence | None:
    """All receive and nobody sends, or the other way round, or each waits for the next in a ring.

    Where nobody counts messages, it is only known of ranks that all do the same.
    """
    ring = ends_of(awaited, closed_circle(awaited) & {one.rank for one in waiting})
    names = {one.operation.name for one in waiting}
    if not ring and (any(awaited.values()) or len(names) > 1):
        return None
    chosen = [one for one in waiting if one.rank in ring] if ring else waiting
    inside = tuple(one.rank for one in chosen)
    departed = departed_in_messages(job)
    known = bool(departed) and set(departed) < set(inside)
    return Divergence(
        pending_collectives=tuple(chosen),
        operations={one.rank: one.operation for one in chosen},
        diverged=departed if known else inside,
        basis="sequence" if known else "nothing",
        proven=bool(ring),
    )


def _is_known(pending: PendingCollective) -> bool:
    """Whether it is known in which operation a rank is.

    Not of one that stands in a function of torch whose operation is not open: it ended, or began,
    while the job was looked at.
    """
    wait = pending.reading.wait
    if pending.group is not None or wait is None or wait.name in UNRECORDED:
        return True
    return not is_collective_code(wait.frame.file)


def _parted_by_group(
    job: JobReading, awaited: Awaited, waiting: Sequence[PendingCollective]
) -> Divergence | None:
    """All wait, in different groups: nobody comes to one who waits alone in his.

    In one group and under different numbers, one is only ahead: its record is from a moment later.
    """
    helpless = closed_circle(awaited) >= {one.rank for one in waiting}
    skipped = skipped_operation(waiting) if helpless else None
    if skipped is not None:
        return _by_skipped(waiting, skipped)
    keys: dict[PendingCollective, Key] = {
        one: (one.group, one.seq, one.operation.name if one.group else one.operation)
        for one in waiting
    }
    if not keys:
        return None
    fewest = min(Counter(keys.values()).values())
    ahead = len({one.group for one in waiting}) == 1 and waiting[0].group is not None
    if ahead or len(set(keys.values())) == 1 or fewest > 1:
        return None
    diverged, basis = find_diverged(job.case.code, keys, _own_way)
    silent, departed = without_message(job), departed_in_messages(job)
    if departed and set(departed) < {one.rank for one in waiting}:
        diverged, basis = departed, "sequence"
    elif silent:
        diverged, basis = silent, "messages"
    return Divergence(
        pending_collectives=tuple(waiting),
        operations={one.rank: one.operation for one in waiting},
        diverged=diverged,
        basis=basis,
        proven=helpless or not any(one.operation.name in PAIRED for one in waiting),
    )


def _by_skipped(waiting: Sequence[PendingCollective], skipped: SkippedOperation) -> Divergence:
    at = (skipped.group, skipped.seq)
    chosen = [one for one in waiting if one.numbered == at or one.rank in skipped.passed_by]
    return Divergence(
        pending_collectives=tuple(chosen),
        operations={one.rank: one.operation if one.numbered == at else LEFT_OUT for one in chosen},
        diverged=skipped.passed_by,
        basis="sequence",
        group=skipped.group,
        seq=skipped.seq,
        last_agreed=skipped.seq - 1,
        proven=True,
    )


def _parted_by_frames(job: JobReading, waiting: Sequence[PendingCollective]) -> Divergence | None:
    keys: dict[PendingCollective, Key] = {one: (_name(one), way_in(one.way)) for one in waiting}
    if len(set(keys.values())) == 1:
        return None
    diverged, basis = find_diverged(job.case.code, keys, lambda _: None)
    return Divergence(
        pending_collectives=tuple(waiting),
        operations={one.rank: Operation(_name(one)) for one in waiting},
        diverged=diverged,
        basis=basis,
    )


def _own_way(pending: PendingCollective) -> tuple[list[Operation], Operation]:
    """Return what a rank did so far in all its groups, and what it does now."""
    return _done(pending), _in_group(pending.group, pending.operation)


def _done(pending: PendingCollective) -> list[Operation]:
    """Return what a rank entered before the operation in which it waits."""
    every = entered(pending)
    numbers = [(group, entry.seq) for group, entry in every]
    end = numbers.index(pending.numbered) if pending.numbered in numbers else len(every)
    return [
        _in_group(group, Operation(entry.op, entry.sizes, entry.dtypes))
        for group, entry in every[:end]
    ]


def _in_group(group: str | None, operation: Operation) -> Operation:
    return replace(operation, name=f"{group}:{operation.name}")


def _name(pending: PendingCollective) -> str:
    wait = pending.reading.wait
    return wait.name if wait is not None else pending.operation.name
