"""The case as rules read it: what each rank does, where it stands, and who is not there."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.job_processes import (
    JobProcesses,
    job_processes,
    process_of,
)
from lightning_hangcheck.diagnosis.rank_reading import RankReading, read_rank
from lightning_hangcheck.diagnosis.views_of_ranks import views_of_ranks, with_groups
from lightning_hangcheck.model.case import Case, RankView
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.reading.phase_of_life import (
    PhaseOfLife,
    life_beside,
    stepped_by_code,
)
from lightning_hangcheck.reading.records.started_operations import (
    asked_end,
    asks_peers,
    device_message,
)
from lightning_hangcheck.reading.waits.torch_waits import Wait

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lightning_hangcheck.model.evidence import Holder
    from lightning_hangcheck.reading.knowledge.loading import WaitKind

MOST_LISTED = 4_096
"""Unknown ranks that are listed: more say nothing new."""
COUNTS_ARRIVALS = "TCPStore__waitForWorkers"
"""What torch (TCPStore.cpp, 2.13) counts while the store's keeper waits for WORLD_SIZE clients."""


class JobReading(Struct, frozen=True, kw_only=True):
    """All ranks, read.

    Attributes:
        ranks: By global rank, ascending; ranks without a process included.
        elsewhere: Ranks of the job of which nothing is known, or nothing by now: they may run on
            other nodes.
        processes: Who is who among their processes.
    """

    case: Case
    ranks: dict[int, RankReading]
    elsewhere: tuple[int, ...] = ()
    gaps: tuple[Gap, ...] = ()
    processes: JobProcesses

    @property
    def alive(self) -> tuple[RankReading, ...]:
        """Ranks that have a process."""
        return tuple(reading for reading in self.ranks.values() if reading.alive)

    @property
    def world_size(self) -> int:
        """Ranks of the job, as far as known."""
        return max(self.case.run.world_size, len(self.ranks))

    @property
    def complete(self) -> bool:
        """Whether the launcher said that every rank runs on this node."""
        local = self.case.run.local_world_size
        return local is not None and local >= self.case.run.world_size

    def rank_of(self, waiter: RankReading, holder: Holder) -> RankReading | None:
        """Return the rank whose process could end a rank's wait; None where that is no rank's."""
        rank = self.processes.ranks.get(process_of(waiter.view.host, holder))
        return self.ranks.get(rank) if rank is not None else None

    def waiting_in(self, kinds: Collection[WaitKind]) -> tuple[RankReading, ...]:
        """Return the ranks that stand in a wait of these kinds."""
        return tuple(
            reading
            for reading in self.ranks.values()
            if (wait := reading.rank_activity.wait) is not None
            and wait.kind in kinds
            and reading.rank_activity.activity == "waiting"
        )


def read_job(case: Case) -> JobReading:
    """Read a case."""
    told, gaps = views_of_ranks(case.ranks)
    views, others = with_groups(told, case.alike) if case.alike else (told, {})
    processes = job_processes(views.values())
    known = processes.looks.keys()
    every = {**{rank: view for rank, (_, view) in others.items()}, **views}
    alone = {rank: read_rank(views[rank], known, case.taken_ns) for rank in sorted(views)}
    read = {rank: _in_operation(one, case, every) for rank, one in alone.items()}
    if 0 in read:
        read[0] = _as_store_keeper(read[0], read)
    read = {rank: _beside(_circling_with(one, read), case) for rank, one in read.items()}
    ranks = _with_others(read, alone, others, case, every) if others else read
    seen = {rank for rank, one in ranks.items() if not one.view.unheard_for_s}
    absent = (rank for rank in range(case.run.world_size) if rank not in seen)
    return JobReading(
        case=case,
        ranks=ranks,
        elsewhere=tuple(islice(absent, MOST_LISTED)),
        gaps=gaps,
        processes=processes,
    )


def _with_others(
    read: Mapping[int, RankReading],
    alone: Mapping[int, RankReading],
    others: Mapping[int, tuple[int, RankView]],
    case: Case,
    every: Mapping[int, RankView],
) -> dict[int, RankReading]:
    """Read the ranks that are told by one of them as that one, each with its own view.

    Where it takes the counts of a rank's peers to say for what it waits, each is asked by itself.

    Args:
        read: The ranks that have a view.
        alone: The same before others were considered.
        others: As `with_groups` returns them.
        case: Of the job.
        every: The views of all.
    """
    by_peers = {rank for rank, one in alone.items() if _hangs_on_peers(one, case)}
    ways: dict[tuple[int, Wait | None], RankReading] = {}
    found = dict(read)
    for rank, (told_by, view) in others.items():
        reading = read[told_by]
        if told_by in by_peers:
            own = _in_operation(replace(alone[told_by], view=view), case, every)
            way = told_by, own.wait
            if way not in ways:
                ways[way] = _beside(_circling_with(own, read), case)
            reading = ways[way]
        found[rank] = replace(reading, view=view, told_by=told_by)
    return {rank: found[rank] for rank in sorted(found)}


def _hangs_on_peers(reading: RankReading, case: Case) -> bool:
    """Whether it takes what others have posted to say in which operation a rank is."""
    still = reading.activity in ("idle", "busy") and reading.wait is None
    return still and asks_peers(case.code, reading.view, reading.frames)


def _beside(reading: RankReading, case: Case) -> RankReading:
    """Read where in its life a rank is by the others' records, or by the code in which it stands.

    That is for one whose own record is not to be had, as of a job that was started without us.
    """
    view, life = reading.view, reading.life
    told = life_beside(view, life, case.ranks)
    if not told and not stepped_by_code(view, life, case.code, reading.frames):
        return reading
    return replace(reading, life=PhaseOfLife("training_step", "life"))


def _as_store_keeper(reading: RankReading, ranks: Mapping[int, RankReading]) -> RankReading:
    """Read rank 0 that counts in the store it keeps who has come: it does so in the same call.

    Torch's own counter tells; without counters, a rank that has found the store.
    """
    wait = reading.wait
    if wait is None or wait.kind != "rendezvous_connect":
        return reading
    counted = reading.view.flight.waits if reading.view.flight is not None else {}
    found = any(one.wait_kind == "rendezvous_peers" for one in ranks.values())
    if COUNTS_ARRIVALS not in counted if counted else not found:
        return reading
    peers = replace(reading.rank_activity, wait=Wait("rendezvous_peers", wait.name, wait.frame))
    return replace(reading, rank_activity=peers)


def _circling_with(reading: RankReading, ranks: Mapping[int, RankReading]) -> RankReading:
    """Read a rank that is busy in the same functions as one that goes round: so does it."""
    if reading.activity != "busy" or reading.circling or not reading.frames:
        return reading
    own = _functions(reading)
    if not any(one.circling and _functions(one) == own for one in ranks.values()):
        return reading
    return replace(reading, rank_activity=replace(reading.rank_activity, circling=True))


def _functions(reading: RankReading) -> list[tuple[str, str]]:
    return [(frame.function, frame.file) for frame in reading.frames]


def _in_operation(reading: RankReading, case: Case, every: Mapping[int, RankView]) -> RankReading:
    """Read a rank that waits, without a frame of torch, for an operation that it started before."""
    if reading.wait_kind == "device":
        wait = device_message(every, reading.view)
    elif reading.activity not in ("idle", "busy") or reading.wait is not None:
        return reading
    else:
        wait = asked_end(case.code, every, reading.view, reading.frames)
        if wait is None and reading.activity == "busy":
            wait = device_message(every, reading.view)
    if wait is None:
        return reading
    activity = replace(reading.rank_activity, activity="waiting", wait=wait)
    return replace(reading, rank_activity=activity, targets=())
