"""Joins what was read into one case of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge.left_logs import find_in_logs
from lightning_hangcheck.judge.log_book import LogBook
from lightning_hangcheck.judge.wording import UNTOLD_S
from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap, ProcessLook, Sample
from lightning_hangcheck.model.flight import FLIGHT_RECORD
from lightning_hangcheck.model.left_behind import LeftBehind, LeftOut, ReadFile
from lightning_hangcheck.model.verdict import MOST_LISTED
from lightning_hangcheck.postmortem.flight_records import KIND, Dump, of_one_incident
from lightning_hangcheck.postmortem.text_files import KIND as LOG
from lightning_hangcheck.postmortem.text_files import STACKS, Text
from lightning_hangcheck.text.shown import NANOSECONDS, moment_of, utc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.flight import FlightRecord
    from lightning_hangcheck.postmortem.files import Reading
    from lightning_hangcheck.postmortem.stacks import StackDump

MOST_GAPS = 8
NO_LOGS = Gap(
    what="logs",
    rank=None,
    why="none was read: what the ranks said last, and how their processes ended, is unknown",
    kind="recording",
    remedy="next time keep a log of each rank: torchrun --log-dir logs --tee 3, or srun "
    "--output=job-%t.log",
)
NOT_NAMED = "a stack whose rank nothing tells: put the rank into the file's name, as in rank3.txt"
WHOSE_STACK = Gap("the rank of this stack", 0, f"it is shown as rank 0; it is {NOT_NAMED}", "rank")


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
    texts = [one.found for one in readings if isinstance(one.found, Text)]
    logs = tuple(one.log for one in texts if one.log.facts or not one.stacks)
    book = LogBook(logs)
    told = find_in_logs(book)
    named = {rank for log in logs for rank in log.ranks}
    named |= {*told.culprits, *told.graph.waiters} if told is not None else set()
    dumps = [dump for one in texts for dump in one.stacks]
    stacks = {dump.rank: dump for dump in dumps if dump.rank is not None}
    unnamed = [dump for dump in dumps if dump.rank is None]
    lone = not (stacks or found or named) and bool(unnamed)
    if lone:
        stacks, unnamed = {0: unnamed[0]}, unnamed[1:]
    others = [*others, *(LeftOut(dump.file, NOT_NAMED) for dump in unnamed)]
    named |= {*found, *stacks}
    world_size = max([world_size, book.world, *(rank + 1 for rank in named)])
    ranks = sorted({*named, *range(min(world_size, MOST_LISTED))})
    written = [one.modified_ns for one in readings if one.modified_ns]
    # where no dump tells a time, its files bound it: it began before they were written
    began = min([one.first_ns for one in found.values() if one.first_ns] or written, default=0)
    last = max([one.last_ns for one in found.values() if one.last_ns] or written, default=0)
    unread = [one for one in left_out if FLIGHT_RECORD in one.why]
    return Case(
        run=RunFacts(
            run_id=run_id,
            command="",
            started_at=utc(moment_of(began)),
            world_size=world_size,
        ),
        taken_at=utc(moment_of(last)),
        taken_ns=int(UNTOLD_S * NANOSECONDS),
        ranks=tuple(
            _view(rank, found[rank].flight if rank in found else None, stacks.get(rank))
            for rank in ranks
        ),
        gaps=(
            *(
                Gap(f"{FLIGHT_RECORD} {one.path}", None, one.why, "flight_record")
                for one in [*unread, *others][:MOST_GAPS]
            ),
            *(() if logs else (NO_LOGS,)),
            *((WHOSE_STACK,) if lone else ()),
        ),
        seen_in="files",
        left=LeftBehind(
            read=(
                *(
                    ReadFile(path=dump.path, kind=KIND, ranks=(rank,))
                    for rank, dump in sorted(found.items())
                ),
                *(
                    ReadFile(path=dump.file, kind=STACKS, ranks=(rank,))
                    for rank, dump in sorted(stacks.items())
                ),
                *(ReadFile(path=log.file, kind=LOG, ranks=log.ranks) for log in logs),
            ),
            left_out=(*others, *left_out),
            world_size=world_size,
            logs=logs,
        ),
    )


def _view(rank: int, flight: FlightRecord | None, stack: StackDump | None) -> RankView:
    """Somebody took the stack of a job that stood still; since when, a stack does not tell."""
    if stack is None:
        return RankView(rank=rank, flight=flight)
    sample = Sample(taken_ns=0, stack=stack.stack)
    look = ProcessLook(pid=stack.stack.pid, role="rank", samples=(sample,))
    return RankView(
        rank=rank,
        pid=stack.stack.pid,
        flight=flight,
        processes=(look,),
        silent_for_s=UNTOLD_S,
        idle_for_s=UNTOLD_S,
    )
