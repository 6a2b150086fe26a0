"""What each rank has entered in each process group and not ended, and for whom that makes it wait.

One table: per group and number, the operation of each rank, by torch's flight record; without a
record, the collective that a rank's frames show. `divergence` asks it where ranks part, and
`attribution` which of them left.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.alike import root_of
from lightning_hangcheck.judge.frames import COLLECTIVE
from lightning_hangcheck.judge.job import RankReading
from lightning_hangcheck.judge.records import awaited_peers, open_operation
from lightning_hangcheck.model.code_owner import is_ours
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import NOT_NOTED, SAME_SIZES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lightning_hangcheck.judge.job import JobReading
    from lightning_hangcheck.model.flight import CallSite, CollectiveEntry, CollectiveRecord

PAIRED = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
"""Between two ranks; torch's flight record has none of gloo's."""
MAKING_GROUP = "new_group"
"""Waits for keys of the store, not for an operation."""
UNRECORDED = PAIRED | {MAKING_GROUP, "monitored_barrier"}
"""What torch's flight record never has."""
FROM_ONE = ("broadcast", "scatter")
"""Who receives in these waits for the root; for others only where they hand it on."""
COLLECTIVE_CODE = re.compile(r"(^|/)torch/(distributed/|autograd/|_tensor\.py)")
"""Below these a rank is on its way into the operation itself."""


class Operation(Struct, frozen=True):
    """What must be equal where ranks meet: the operation, of some also the input's sizes.

    Attributes:
        detail: Root and reduction; empty where nobody noted them.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        sizes = " ".join(str(list(size)) for size in self.sizes)
        parts = (self.name, sizes, self.dtypes[0] if self.dtypes else "", self.detail)
        return " ".join(filter(None, parts))


class Step(Struct, frozen=True):
    """An operation of one rank, and the frames from which it was called, as far as noted."""

    operation: Operation
    called_from: tuple[Frame, ...] = ()


class History(Struct, frozen=True, eq=False):
    """A rank's column of the table for one group.

    Attributes:
        steps: What it entered, by number; only the newest are kept.
        open: Numbers of those that have not ended.
        newest: Number of the last one that it entered.
    """

    steps: dict[int, Step]
    open: frozenset[int]
    newest: int

    def has_ended(self, seq: int) -> bool:
        """Whether the rank has been through this number."""
        return seq <= self.newest and seq not in self.open


class PendingCollective(Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """A rank that waits in a collective; equal only to itself.

    Attributes:
        group: Name of the process group; None where the operation is not recorded.
        seq: Its number in the group.
        source: The one rank from which it comes: of a broadcast or scatter whose root was noted.
        way: Frames that led to the operation by which ranks are compared: those where it stands,
            unless that operation was an earlier one; none where they are not known.
    """

    reading: RankReading
    operation: Operation
    group: str | None = None
    seq: int | None = None
    source: int | None = None
    way: tuple[Frame, ...] = ()

    @property
    def numbered(self) -> tuple[str, int] | None:
        """Group and number; None where the operation is not recorded."""
        return None if self.group is None or self.seq is None else (self.group, self.seq)

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.reading.rank


def records(reading: RankReading) -> tuple[CollectiveRecord, ...]:
    """Return a rank's process groups, as far as recorded."""
    return reading.view.flight.groups if reading.view.flight is not None else ()


def record_of(reading: RankReading, group: str) -> CollectiveRecord | None:
    """Return what a rank knows of a group."""
    return next((record for record in records(reading) if record.group == group), None)


def call_of(reading: RankReading, entry: CollectiveEntry) -> CallSite:
    """Return from where a rank called an operation; an empty one where nobody noted it."""
    flight = reading.view.flight
    return flight.call_of(entry) if flight is not None else NOT_NOTED


def operation_of(reading: RankReading, entry: CollectiveEntry) -> Operation:
    """Return what of an entry must be equal on all ranks."""
    call = call_of(reading, entry)
    detail = " ".join(filter(None, (call.root, call.reduction)))
    if entry.op in SAME_SIZES:
        return Operation(entry.op, entry.sizes, entry.dtypes, detail)
    return Operation(entry.op, detail=detail)


def entered(reading: RankReading) -> list[tuple[str, CollectiveEntry]]:
    """Return what a rank entered in all its groups, with their names, oldest first."""
    every = ((record.group, entry) for record in records(reading) for entry in record.entries)
    return sorted(every, key=lambda pair: pair[1].created_ns)


def histories(
    waiting: Sequence[PendingCollective],
) -> dict[str, dict[PendingCollective, History]]:
    """Return the table for each group in which one waits; equal records share one history."""
    found: dict[str, dict[PendingCollective, History]] = {
        one.group: {} for one in waiting if one.group is not None
    }
    known: dict[tuple[int, ...], History] = {}
    for one in waiting:
        reading, flight = one.reading, one.reading.view.flight
        for record in flight.groups if flight is not None else ():
            if record.group not in found or flight is None:
                continue
            counts = record.last_enqueued, record.last_completed
            key = id(record.entries), id(flight.sites), *counts
            if key not in known:
                steps = {
                    entry.seq: Step(
                        operation_of(reading, entry), way_in(flight.call_of(entry).frames)
                    )
                    for entry in record.entries
                }
                still = (entry.seq for entry in record.entries if not record.has_ended(entry))
                known[key] = History(steps, frozenset(still), record.newest)
            found[record.group][one] = known[key]
    return found


def way_in(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames down to where torch's own collective code begins, without this package's.

    What a rank noted of its call has none of these, and is compared with what stacks show.
    """
    end = next((at for at, one in enumerate(frames) if is_collective_code(one.file)), len(frames))
    return tuple(frame for frame in frames[:end] if not is_ours(frame.file))


def ways_of(waiting: Iterable[PendingCollective]) -> set[tuple[Frame, ...]]:
    """Return the different frames that led ranks to their operations."""
    return set({id(one.way): one.way for one in waiting}.values())


def is_collective_code(file: str) -> bool:
    """Whether a file is torch's own, on the way into an operation."""
    return COLLECTIVE_CODE.search(file) is not None


def pending_collectives(job: JobReading) -> dict[int, PendingCollective]:
    """Return where each rank stands that waits in a collective, by rank.

    A rank whose evidence is another one's stands as that one does: in the same place of its record,
    in a group of its own.
    """
    found: dict[int, PendingCollective] = {}
    known: dict[tuple[int, int], PendingCollective | None] = {}
    for reading in job.waiting_in(COLLECTIVE):
        key = reading.told_by_rank, id(reading.wait)
        if key not in known:
            known[key] = pending_collective(reading)
        pending = known[key]
        if pending is None or pending.reading is reading:
            found.update({} if pending is None else {reading.rank: pending})
            continue
        theirs, own = records(pending.reading), records(reading)
        group, source = pending.group, pending.source
        at = next((at for at, one in enumerate(theirs) if one.group == group), None)
        if at is not None and theirs is not own and len(theirs) == len(own):
            group = own[at].group
            if source is not None:
                members = own[at].ranks
                source = source + members[0] - theirs[at].ranks[0] if members else None
        found[reading.rank] = replace(pending, reading=reading, group=group, source=source)
    return found


def pending_collective(reading: RankReading) -> PendingCollective | None:
    """Return where a rank stands; None where it waits in no collective.

    In the oldest open operation that the waiting thread can have entered; a message is none.
    """
    wait = reading.wait
    if wait is None or reading.wait_kind not in COLLECTIVE or reading.activity != "waiting":
        return None
    of_main = wait.frame in reading.frames
    here = reading.frames if of_main else reading.stuck_frames  # of the thread that is in it
    here = () if reading.wait_kind == "device" else here
    unrecorded = PendingCollective(reading=reading, operation=Operation(wait.name), way=here)
    if wait.name == MAKING_GROUP:
        unused = tuple(record.ranks for record in records(reading) if not record.entries)
        return replace(unrecorded, operation=Operation(wait.name, unused[-1:]))
    found = open_operation(reading.view, of_main=of_main) if wait.name not in PAIRED else None
    if found is None:
        return unrecorded
    record, entry = found
    call = call_of(reading, entry)
    return PendingCollective(
        reading=reading,
        operation=Operation(entry.op, entry.sizes, entry.dtypes),
        group=record.group,
        seq=entry.seq,
        source=root_of(call) if entry.op in FROM_ONE else None,
        way=here or call.frames,
    )


def still_pending(pending: Mapping[int, PendingCollective]) -> tuple[PendingCollective, ...]:
    """Return those that don't move, of what `pending_collectives` returned."""
    return tuple(
        one for one in pending.values() if one.reading.process_activity.activity != "moving"
    )


def awaited_ranks(
    job: JobReading, pending: Mapping[int, PendingCollective]
) -> dict[int, tuple[int, ...]]:
    """Return for each rank that waits in a collective the ranks that it waits for, ascending.

    These are the members of the group that have not entered its operation, by their numbers; for a
    message its other end, by how many each has posted. Where neither is recorded, all ranks that
    stand in no collective and are in a group with which it has called one, from this line or, where
    there is none, from any. Equal ones are one and the same tuple.
    """
    outside = tuple(rank for rank in job.ranks if rank not in pending)
    away, views = frozenset(outside), {rank: one.view for rank, one in job.ranks.items()}
    known: dict[object, tuple[int, ...]] = {(): outside}
    called: dict[int, list[int]] = {}
    found: dict[int, tuple[int, ...]] = {}
    for rank, one in pending.items():
        reading, every = one.reading, records(one.reading)
        if one.numbered is not None:
            if one.numbered not in known:
                known[one.numbered] = _not_come(job, one, away)
            found[rank] = known[one.numbered]
        elif one.operation.name in PAIRED:
            found[rank] = awaited_peers(views, reading.view, one.operation.name) or outside
        else:
            if reading.told_by_rank not in called:
                way, used = way_in(reading.frames), [at for at, o in enumerate(every) if o.entries]
                called[reading.told_by_rank] = [
                    at
                    for at in used
                    if any(way_in(call_of(reading, e).frames) == way for e in every[at].entries)
                ] or used
            groups = [every[at].ranks for at in called[reading.told_by_rank] if at < len(every)]
            key = tuple(map(id, groups)) if all(groups) else ()
            if key not in known:
                may_meet = frozenset().union(*groups)
                known[key] = tuple(rank for rank in outside if rank in may_meet)
            found[rank] = known[key]
    return found


def waiting_together(
    awaited: Mapping[int, tuple[int, ...]],
) -> list[tuple[list[int], tuple[int, ...]]]:
    """Group the ranks that wait by whom they wait for.

    A hundred thousand ranks share one and the same tuple: each is read once.
    """
    waiters: dict[int, list[int]] = {}
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, others in awaited.items():
        if others:
            if id(others) not in waiters:
                waiters[id(others)] = found.setdefault(others, [])
            waiters[id(others)].append(rank)
    return [(ranks, others) for others, ranks in found.items()]


def _not_come(
    job: JobReading, pending: PendingCollective, outside: Collection[int]
) -> tuple[int, ...]:
    """Return who has not entered an operation; where all have, or it is not known, who is away.

    Of a broadcast its source alone, where that has not: what the others do changes nothing.
    """
    group, seq = pending.group or "", pending.seq or 0
    record = record_of(pending.reading, group)
    named = set(record.ranks) if record is not None else set()
    members = sorted((named or set(job.ranks)) & job.ranks.keys())

    def owes(rank: int) -> bool:
        own = record_of(job.ranks[rank], group)
        if own is not None:
            return own.newest < seq
        recorded = job.ranks[rank].view.flight is not None
        return rank in outside or (recorded and rank in named)

    owing = tuple(filter(owes, members))
    if pending.source in owing:
        return (pending.source,)
    return owing or tuple(rank for rank in members if rank in outside)
