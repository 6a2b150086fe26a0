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
from lightning_hangcheck.postmortem.flight_records import Dump, of_one_incident
from lightning_hangcheck.postmortem.stacks import Text
from lightning_hangcheck.text.shown import NANOSECONDS, moment_of, utc

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    dumps, others = of_one_incident(one.found for one in readings if isinstance(one.found, Dump))
    texts = [one.found for one in readings if isinstance(one.found, Text)]
    logs = tuple(one.log for one in texts if one.log.facts or not one.stacks)
    book = LogBook(logs)
    told = find_in_logs(book)
    named = {*dumps, *(rank for log in logs for rank in log.ranks)}
    named |= {*told.culprits, *told.graph.waiters} if told is not None else set()
    took = [dump for one in texts for dump in one.stacks]
    stacks = {dump.rank: dump for dump in took if dump.rank is not None}
    unnamed = [dump for dump in took if dump.rank is None]
    lone = not (stacks or named) and bool(unnamed)
    if lone:
        stacks, unnamed = {0: unnamed[0]}, unnamed[1:]
    others += [LeftOut(dump.file, NOT_NAMED) for dump in unnamed]
    named |= set(stacks)
    members = (len(dump.world) for dump in dumps.values())
    world_size = max([0, book.world, *members, *(rank + 1 for rank in named)])
    written = [one.modified_ns for one in readings if one.modified_ns]
    # where no dump tells a time, its files bound it: it began before they were written
    began = min([one.first_ns for one in dumps.values() if one.first_ns] or written, default=0)
    last = max([one.last_ns for one in dumps.values() if one.last_ns] or written, default=0)
    unused = [*(one for one in left_out if FLIGHT_RECORD in one.why), *others][:MOST_GAPS]
    read = [(dump.path, FLIGHT_RECORD, (rank,)) for rank, dump in sorted(dumps.items())]
    read += [(dump.file, "stack dump", (rank,)) for rank, dump in sorted(stacks.items())]
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
            _view(rank, dumps.get(rank), stacks.get(rank))
            for rank in sorted({*named, *range(min(world_size, MOST_LISTED))})
        ),
        gaps=(
            *(Gap(f"{FLIGHT_RECORD} {one.path}", None, one.why, "flight_record") for one in unused),
            *(() if logs else (NO_LOGS,)),
            *((WHOSE_STACK,) if lone else ()),
        ),
        seen_in="files",
        left=LeftBehind(
            read=tuple(
                ReadFile(path=path, kind=kind, ranks=ranks)
                for path, kind, ranks in [*read, *((log.file, "log", log.ranks) for log in logs)]
            ),
            left_out=(*others, *left_out),
            world_size=world_size,
            logs=logs,
        ),
    )


def _view(rank: int, dump: Dump | None, stack: StackDump | None) -> RankView:
    """Somebody took the stack of a job that stood still; since when, a stack does not tell."""
    flight = dump.flight if dump is not None else None
    if stack is None:
        return RankView(rank=rank, flight=flight)
    pid, sample = stack.stack.pid, Sample(taken_ns=0, stack=stack.stack)
    return RankView(
        rank=rank,
        pid=pid,
        flight=flight,
        processes=(ProcessLook(pid=pid, role="rank", samples=(sample,)),),
        silent_for_s=UNTOLD_S,
        idle_for_s=UNTOLD_S,
    )
