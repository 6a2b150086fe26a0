"""In which collective each rank stands, by torch's flight record, and without one by frames."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rank_reading import RankReading
from lightning_hangcheck.gather.alike_records import root_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import NOT_NOTED, SAME_SIZES
from lightning_hangcheck.model.naming.code_owner import is_ours
from lightning_hangcheck.reading.knowledge.frames import DISTINCT_FRAMES
from lightning_hangcheck.reading.records.open_operations import open_operation
from lightning_hangcheck.reading.waits.torch_waits import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.model.flight import CallSite, CollectiveEntry, CollectiveRecord

PAIRED = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
"""Between two ranks; torch's flight record has none of gloo's."""
MAKING_GROUP = "new_group"
"""Waits for keys of the store, not for an operation."""
UNRECORDED = PAIRED | {MAKING_GROUP, "monitored_barrier"}
"""What torch's flight record never has."""
COLLECTIVE_CODE = ("torch/distributed/", "torch/autograd/", "torch/_tensor.py")
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
        told = (self.name, sizes, self.dtypes[0] if self.dtypes else "", self.detail)
        return " ".join(filter(None, told))


FROM_ONE = ("broadcast", "scatter")
"""Who receives in these waits for the root; for others only where they hand it on."""


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


def pending_collectives(job: JobReading) -> dict[int, PendingCollective]:
    """Return where each rank stands that waits in a collective, by rank.

    Those that one rank tells for stand as that one does, in groups of their own.
    """
    found: dict[int, PendingCollective] = {}
    known: dict[tuple[int, int], PendingCollective | None] = {}
    for reading in job.waiting_in(COLLECTIVE):
        key = reading.told_by_rank, id(reading.wait)
        if key not in known:
            known[key] = pending_collective(reading)
        pending = known[key]
        if pending is not None:
            alike = pending.reading is not reading
            found[reading.rank] = _of_alike(pending, reading) if alike else pending
    return found


def still_pending(pending: Mapping[int, PendingCollective]) -> tuple[PendingCollective, ...]:
    """Return those that don't move, of what `pending_collectives` returned."""
    return tuple(
        one for one in pending.values() if one.reading.process_activity.activity != "moving"
    )


def _of_alike(pending: PendingCollective, reading: RankReading) -> PendingCollective:
    """Return where a rank stands that another one tells for: in the same place of its record."""
    told, own = records(pending.reading), records(reading)
    if pending.group is None or told is own or len(told) != len(own):
        return replace(pending, reading=reading)
    for there, here in zip(told, own, strict=True):
        if there.group == pending.group:
            if pending.source is None:
                return replace(pending, reading=reading, group=here.group)
            source = pending.source + here.ranks[0] - there.ranks[0] if here.ranks else None
            return replace(pending, reading=reading, group=here.group, source=source)
    return replace(pending, reading=reading)


def ways_of(waiting: Iterable[PendingCollective]) -> set[tuple[Frame, ...]]:
    """Return the different frames that led ranks to their operations."""
    return set({id(one.way): one.way for one in waiting}.values())


def pending_collective(reading: RankReading) -> PendingCollective | None:
    """Return where a rank stands; None where it waits in no collective.

    Of its open operations the oldest that the waiting thread can have entered: one of another
    thread never stands for it. Between two ranks none is open, whatever is recorded beside it.
    """
    if reading.wait is None or reading.wait_kind not in COLLECTIVE or reading.activity != "waiting":
        return None
    name, of_main = reading.wait.name, reading.wait.frame in reading.frames
    here = () if reading.wait_kind == "device" else reading.frames
    if name == MAKING_GROUP:
        made = Operation(name, _members_made(reading))
        return PendingCollective(reading=reading, operation=made, way=here)
    found = open_operation(reading.view, of_main=of_main) if name not in PAIRED else None
    if found is None:
        return PendingCollective(reading=reading, operation=Operation(name), way=here)
    record, entry = found
    return PendingCollective(
        reading=reading,
        operation=Operation(entry.op, entry.sizes, entry.dtypes),
        group=record.group,
        seq=entry.seq,
        source=_source(entry.op, call_of(reading, entry)),
        way=here or call_of(reading, entry).frames,
    )


def _source(name: str, call: CallSite) -> int | None:
    return root_of(call) if name in FROM_ONE else None


def call_of(reading: RankReading, entry: CollectiveEntry) -> CallSite:
    """Return from where a rank called an operation; an empty one where nobody noted it."""
    flight = reading.view.flight
    return flight.call_of(entry) if flight is not None else NOT_NOTED


def _members_made(reading: RankReading) -> tuple[tuple[int, ...], ...]:
    """Return the members of the group that a rank makes, as it noted them; none if it did not."""
    unused = [record.ranks for record in records(reading) if not record.entries]
    return tuple(unused[-1:])


def records(reading: RankReading) -> tuple[CollectiveRecord, ...]:
    """Return a rank's process groups, as far as recorded."""
    return reading.view.flight.groups if reading.view.flight is not None else ()


def record_of(reading: RankReading, group: str) -> CollectiveRecord | None:
    """Return what a rank knows of a group."""
    return next((record for record in records(reading) if record.group == group), None)


def operation_of(reading: RankReading, entry: CollectiveEntry) -> Operation:
    """Return what of an entry must be equal on all ranks."""
    call = call_of(reading, entry)
    detail = " ".join(filter(None, (call.root, call.reduction)))
    if entry.op in SAME_SIZES:
        return Operation(entry.op, entry.sizes, entry.dtypes, detail)
    return Operation(entry.op, detail=detail)


def way_in(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames down to where torch's own collective code begins, without this package's.

    What a rank noted of its call has none of these, and is compared with what stacks show.
    """
    end = next((at for at, one in enumerate(frames) if is_collective_code(one.file)), len(frames))
    return tuple(frame for frame in frames[:end] if not is_ours(frame.file))


@lru_cache(maxsize=DISTINCT_FRAMES)
def is_collective_code(file: str) -> bool:
    """Whether a file is torch's own, on the way into an operation."""
    return any(f"/{part}" in f"/{file}" for part in COLLECTIVE_CODE)
