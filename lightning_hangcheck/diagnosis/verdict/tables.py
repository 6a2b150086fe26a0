"""The verdict's tables: of ranks, and of process groups on which ranks disagree or wait."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    record_of,
    records,
    still_pending,
)
from lightning_hangcheck.model.verdict import (
    MOST_LISTED,
    CollectiveState,
    LastCheckpoint,
    RankState,
)
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lightning_hangcheck.diagnosis.divergence.divergence import Divergence
    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.beat import Beat, OpenSection
    from lightning_hangcheck.model.verdict import State
    from lightning_hangcheck.reading.activity.rank_activity import Activity

MOST_ROWS = MOST_LISTED
STATES: dict[Activity, State] = {
    "moving": "running",
    "busy": "running",
    "idle": "running",
    "waiting": "waiting",
    "stopped": "stopped",
    "gone": "gone",
    "missing": "missing",
    "unseen": "unseen",
    "unheard": "unseen",
}
MOST_GROUPS = 64


def rank_table(
    job: JobReading,
    culprits: Collection[int],
    victims: Collection[int],
    groups: Mapping[int, int],
) -> tuple[RankState, ...]:
    """Return every rank; above 1,024 only culprits and one rank of each stack group.

    Args:
        job: All ranks.
        culprits: Those that a verdict blames; idle or busy, they count as stalled.
        victims: Those that only wait for them, idle ones at a lock or a store included.
        groups: Stack group of each rank that has one.
    """
    blamed, led = set(culprits), set(victims)
    shown: Iterable[RankReading] = job.ranks.values()
    if len(job.ranks) > MOST_ROWS:
        examples = {group: rank for rank, group in sorted(groups.items(), reverse=True)}
        kept = blamed | set(examples.values())
        shown = [reading for reading in shown if reading.rank in kept]
    return tuple(
        _row(reading, _state(reading, blamed, led), groups.get(reading.rank)) for reading in shown
    )


def paced_table(rows: Iterable[RankState], waiting: Collection[int]) -> tuple[RankState, ...]:
    """Return the rows of ranks whose pages show that they make steps, looked at or not.

    Args:
        rows: As `rank_table` returns them.
        waiting: Ranks that are slow only because they wait for others.
    """
    led = set(waiting)
    return tuple(
        replace(row, state="waiting" if row.rank in led else "running")
        if row.state == "unseen"
        else row
        for row in rows
    )


def collectives(
    job: JobReading, pending: Mapping[int, PendingCollective], divergence: Divergence | None
) -> tuple[CollectiveState, ...]:
    """Return the group in which the ranks' ways part, then each in which a rank waits."""
    rows: dict[tuple[str, int], CollectiveState] = {}
    if divergence is not None and divergence.group is not None:
        seq = (divergence.last_agreed or 0) + 1
        told = {rank: str(one) for rank, one in divergence.operations.items()}
        rows[divergence.group, seq] = _collective_row(job, divergence.group, seq, told)
    waiting: dict[tuple[str, int], list[PendingCollective]] = {}
    for one in still_pending(pending):
        if one.numbered is not None:
            waiting.setdefault(one.numbered, []).append(one)
    for key, together in islice(waiting.items(), MOST_GROUPS):
        if key not in rows:
            told = {one.rank: str(one.operation) for one in together}
            rows[key] = _collective_row(job, *key, told)
    return tuple(rows.values())[:MOST_GROUPS]


def _state(reading: RankReading, blamed: Collection[int], led: Collection[int]) -> State:
    if reading.rank in blamed and reading.activity in ("idle", "busy", "waiting"):
        return "stalled"
    waits = reading.rank in led and reading.activity == "idle"
    return "waiting" if waits else STATES[reading.activity]


def _row(reading: RankReading, state: State, group: int | None) -> RankState:
    view, beat = reading.view, reading.view.beat
    mark = beat.checkpoint if beat is not None else None
    return RankState(
        rank=reading.rank,
        local_rank=view.local_rank,
        host=view.host,
        pid=view.pid,
        state=state,
        phase=reading.phase,
        last_checkpoint=LastCheckpoint(mark.number, mark.name, mark.at) if mark else None,
        open_sections=tuple(map(str, _sections(beat))) if beat is not None else (),
        step=beat.step if beat is not None else None,
        stack_group=group,
    )


def _sections(beat: Beat) -> list[OpenSection]:
    """Oldest first, those of the main thread last: that is where the rank is."""
    return sorted(beat.sections, key=lambda section: section.in_main_thread)


def _collective_row(job: JobReading, group: str, seq: int, did: dict[int, str]) -> CollectiveState:
    ops: dict[str, list[int]] = {}
    for rank, operation in did.items():
        ops.setdefault(operation, []).append(rank)
    known: set[int] = set()
    told: set[int] = set()
    for rank in _who_may_know(job, group, did):
        for record in records(job.ranks[rank]):
            if record.group == group and not record.ranks:
                known.add(rank)
            elif record.group == group and id(record.ranks) not in told:
                told.add(id(record.ranks))
                known.update(record.ranks)
    return CollectiveState(
        group=group,
        ranks=format_ranks(known),
        seq=seq,
        ops={operation: format_ranks(ranks) for operation, ranks in ops.items()},
    )


def _who_may_know(job: JobReading, group: str, did: Iterable[int]) -> Iterable[int]:
    """Return whose records may tell of a group: all ranks, where no member says who they are."""
    for rank in did:
        record = record_of(job.ranks[rank], group)
        if record is not None and record.ranks:
            return job.ranks.keys() & set(record.ranks)
    return job.ranks
