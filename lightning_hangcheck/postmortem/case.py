"""Joins what was read into one case of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.flight import FLIGHT_RECORD
from lightning_hangcheck.model.left_behind import LeftBehind, ReadFile
from lightning_hangcheck.model.verdict import MOST_LISTED
from lightning_hangcheck.postmortem.records import KIND, Dump, of_one_incident
from lightning_hangcheck.text.moments import EPOCH, moment_of, utc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.left_behind import LeftOut
    from lightning_hangcheck.postmortem.files import Reading

MOST_GAPS = 8


def case_of(readings: Sequence[Reading], left_out: Sequence[LeftOut], run_id: str) -> Case:
    """Build the case of one job: each of its ranks, with what was left of it.

    Args:
        readings: Files that were read.
        left_out: Files that were not.
        run_id: Name of the run folder that it is saved in.
    """
    found, others = of_one_incident(one.found for one in readings if isinstance(one.found, Dump))
    world_size = max(
        [0, *(len(dump.world) for dump in found.values()), *(rank + 1 for rank in found)]
    )
    ranks = sorted({*found, *range(min(world_size, MOST_LISTED))})
    times = [dump.last_ns for dump in found.values() if dump.last_ns]
    began = min((dump.first_ns for dump in found.values() if dump.first_ns), default=0)
    unread = [one for one in left_out if FLIGHT_RECORD in one.why]
    return Case(
        run=RunFacts(
            run_id=run_id,
            command="",
            started_at=utc(moment_of(began) if began else EPOCH),
            world_size=world_size,
        ),
        taken_at=utc(moment_of(max(times)) if times else EPOCH),
        taken_ns=0,
        ranks=tuple(
            RankView(rank=rank, flight=found[rank].flight if rank in found else None)
            for rank in ranks
        ),
        gaps=tuple(
            Gap(f"{FLIGHT_RECORD} {one.path}", None, one.why, "flight_record")
            for one in [*unread, *others][:MOST_GAPS]
        ),
        seen_in="files",
        left=LeftBehind(
            read=tuple(
                ReadFile(path=dump.path, kind=KIND, ranks=(rank,))
                for rank, dump in sorted(found.items())
            ),
            left_out=(*others, *left_out),
            world_size=world_size,
        ),
    )
