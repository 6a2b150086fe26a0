"""Tells the run folders of several jobs apart, and says which job is the one to explain.

A folder tree may hold every run of a project. Run folders belong to one job where its nodes met, or
where each has other ranks of a world of the same size at the same time. Of several jobs the newest
that ended badly is explained.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, decode, read_owned
from lightning_hangcheck.judge.verdict import COSTS_THE_JOB
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rundir import START_PREFIX, RunFolder, newest_case
from lightning_hangcheck.text.shown import EPOCH, read_utc
from lightning_hangcheck.time_limit import READING_LIMIT_S, NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from lightning_hangcheck.model.case import Case

Part = TypeVar("Part", RunRecord, Verdict)
ENDED_BADLY = (*COSTS_THE_JOB, "suspect")
"""A suspicion that stands when a job is gone was never taken back."""
CLOCKS_DIFFER_BY = timedelta(minutes=2)
"""Between nodes, at most: what they wrote at one time may seem that far apart."""


class Kept(NamedTuple):
    """What one run folder holds.

    Attributes:
        began: When the run did.
        until: When its newest evidence was taken, or the run was over.
        holders: Ranks of which it saw a process.
        meeting: Where the nodes of its job met; empty where they did not.
        derived: It is what `postmortem` or `merge` made of others.
        told: The newest verdict in it, empty where none can be read.
    """

    folder: RunFolder
    began: datetime
    until: datetime
    world_size: int
    holders: frozenset[int]
    meeting: str
    derived: bool
    told: str


class Job(NamedTuple):
    """Run folders of one job, one for each node."""

    nodes: tuple[Kept, ...]

    @property
    def told(self) -> str:
        """The gravest that was told in them, ``hang``; empty where no verdict can be read."""
        told = [one.told for one in self.nodes if one.told]
        return next((one for one in told if one in ENDED_BADLY), told[0] if told else "")

    @property
    def derived(self) -> bool:
        """Whether all of it was made of other run folders."""
        return all(one.derived for one in self.nodes)


def jobs_in(folders: Sequence[RunFolder], *, together: bool) -> list[Job]:
    """Tell jobs apart, the one to explain first.

    Args:
        folders: Run folders.
        together: Somebody named each of them: then they are of one job.
    """
    kept = [_kept(one) for one in folders]
    if together:
        return [Job(tuple(kept))] if kept else []
    starts = (path for one in folders for path in sorted(one.path.glob(f"{START_PREFIX}*")))
    kept += [_kept(one) for one in map(RunFolder, starts) if one.run_file.is_file()]
    jobs: list[Job] = []
    for one in sorted(kept, key=lambda each: each.began):
        for number in reversed(range(len(jobs))):
            if all(_beside(one, node) for node in jobs[number].nodes):
                jobs[number] = Job((*jobs[number].nodes, one))
                break
        else:
            jobs.append(Job((one,)))
    return sorted(
        jobs,
        key=lambda job: (
            *(not job.derived, job.told in ENDED_BADLY),
            max(one.began for one in job.nodes),
        ),
        reverse=True,
    )


def _beside(one: Kept, other: Kept) -> bool:
    """Whether two nodes ran at one time, and met or have other ranks of a world of one size."""
    if one.derived or other.derived or one.world_size != other.world_size:
        return False
    if max(one.began, other.began) > min(one.until, other.until) + CLOCKS_DIFFER_BY:
        return False
    if one.meeting and one.meeting == other.meeting:
        return True
    return bool(one.holders and other.holders) and one.holders.isdisjoint(other.holders)


def _kept(folder: RunFolder) -> Kept:
    """Read what tells it from others; what cannot be read of it says nothing."""

    def read() -> tuple[Case | None, RunRecord | None, Verdict | None]:
        case = None
        with suppress(UnreadableRun):
            case, _ = newest_case(folder)
        return case, _part(folder.run_file, RunRecord), _part(folder.verdict_file, Verdict)

    try:
        case, record, verdict = within(READING_LIMIT_S, read)
    except NoAnswer:  # which is said when it is read as evidence
        case, record, verdict = None, None, None
    moments = [] if case is None else [case.taken_at, case.run.started_at]
    moments += [] if record is None else [record.started_at, record.ended_at or ""]
    times = []
    for moment in moments:
        with suppress(ValueError):
            times.append(read_utc(moment))
    return Kept(
        folder=folder,
        began=min(times, default=EPOCH),
        until=max(times, default=EPOCH),
        world_size=case.run.world_size if case is not None else 0,
        holders=frozenset(one.rank for one in (case.ranks if case else ()) if one.pid is not None),
        meeting=record.meeting if record is not None else "",
        derived=verdict is not None and verdict.seen_in == "files",
        told=verdict.verdict if verdict is not None else "",
    )


def _part(file: Path, kind: type[Part]) -> Part | None:
    try:
        return decode(read_owned(file, EVIDENCE_BYTES), kind, str(file))
    except (OSError, UnreadableRun):
        return None
