"""Who walked past an operation that another rank started, went on from, and waits for now?

Two groups need not be used in one order by the threads of a rank, so the newest of each contradict
nothing. But a rank that entered a later operation of the one group, and never that of the other,
has passed the place where it belongs. That it belongs there, earlier ones tell: as many steps lay
between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.diagnosis.divergence.pending_collectives import record_of, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    of_group: dict[str, list[PendingCollective]] = {}
    for pending in waiting:
        for record in records(pending.reading):
            of_group.setdefault(record.group, []).append(pending)
    asked: set[tuple[str, int, int]] = set()
    for pending in waiting:
        if pending.group is None or pending.seq is None:
            continue
        key = pending.group, pending.seq, pending.reading.told_by_rank
        if key not in asked:
            asked.add(key)
            found = _skipped(pending, pending.group, pending.seq, of_group[pending.group])
            if found is not None:
                return found
    return None


def entered(pending: PendingCollective) -> list[Entered]:
    """Return what a rank entered in all its groups, with their names, oldest first."""
    every = (
        (record.group, entry) for record in records(pending.reading) for entry in record.entries
    )
    return sorted(every, key=lambda pair: pair[1].created_ns)


def _skipped(
    pending: PendingCollective, group: str, seq: int, waiting: Sequence[PendingCollective]
) -> SkippedOperation | None:
    steps = _entered_next(pending, group, seq)
    if steps is None:
        return None
    at = {one: _steps_before(one, group, steps) for one in waiting}
    own = at[pending]
    if seq not in own or seq - 1 not in own:
        return None
    own_gap, apart = own[seq] - own[seq - 1], _most_apart(at.values(), seq)
    usual = {gap for one in at.values() for gap in _gaps(one, seq)}
    if apart is None or not any(abs(own_gap - gap) <= apart for gap in usual):
        return None
    passed = tuple(
        one.rank
        for one in waiting
        if _last_entered(one, group) in range(seq) and _last_entered(one, steps) > own[seq] + apart
    )
    return SkippedOperation(group, seq, passed) if passed else None


def _entered_next(pending: PendingCollective, group: str, seq: int) -> str | None:
    """Return the other group that a rank used next after an operation; None if it used none."""
    every = entered(pending)
    numbers = [(name, entry.seq) for name, entry in every]
    after = numbers[numbers.index((group, seq)) + 1 :] if (group, seq) in numbers else []
    return next((name for name, _ in after if name != group), None)


def _steps_before(pending: PendingCollective, group: str, steps: str) -> dict[int, int]:
    """Return for each number of a group at which number of the other the rank was then."""
    found: dict[int, int] = {}
    newest: int | None = None
    for name, entry in entered(pending):
        if name == steps:
            newest = entry.seq
        elif name == group and newest is not None:
            found[entry.seq] = newest
    return found


def _most_apart(at: Iterable[dict[int, int]], seq: int) -> int | None:
    """Return how many steps apart ranks were at most in one operation before this.

    Threads enter operations side by side: how often one comes a step later, the ranks' own past
    shows. None where they had none in common.
    """
    entered_at: dict[int, list[int]] = {}
    for one in at:
        for number, step in one.items():
            if number < seq:
                entered_at.setdefault(number, []).append(step)
    apart = [max(steps) - min(steps) for steps in entered_at.values() if len(steps) > 1]
    return max(apart, default=None)


def _gaps(at: dict[int, int], seq: int) -> list[int]:
    """Return how many steps lay between the operations before this one."""
    return [
        step - at[number - 1] for number, step in at.items() if number < seq and number - 1 in at
    ]


def _last_entered(pending: PendingCollective, group: str) -> int:
    """Return the number of the newest operation of a group, -1 where nothing is known of it."""
    record = record_of(pending.reading, group)
    return record.last_enqueued if record is not None else -1
