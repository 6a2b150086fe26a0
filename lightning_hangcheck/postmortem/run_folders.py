"""Tells the run folders of several jobs apart, and says which job is the one to explain.

A folder tree may hold every run of a project. Run folders belong to one job where its nodes met, or
where each has other ranks of a world of the same size at the same time. Of several jobs the newest
that ended badly is explained.
"""

from __future__ import annotations

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
        verdict: The newest in it, None where none can be read.
    """

    folder: RunFolder
    began: datetime
    until: datetime
    world_size: int
    holders: frozenset[int]
    meeting: str
    derived: bool
    verdict: Verdict | None


class Job(NamedTuple):
    """Run folders of one job, one for each node."""

    nodes: tuple[Kept, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The gravest that was told in them."""
        told = [one.verdict for one in self.nodes if one.verdict is not None]
        return next((one for one in told if one.verdict in ENDED_BADLY), told[0] if told else None)

    @property
    def ended_badly(self) -> bool:
        """Whether it was told to hang, to have died or crashed, or seemed to when it was gone."""
        return self.verdict is not None and self.verdict.verdict in ENDED_BADLY

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
    kept += [
        _kept(RunFolder(path))
        for one in folders
        for path in sorted(one.path.glob(f"{START_PREFIX}*"))
        if RunFolder(path).run_file.is_file()
    ]
    jobs: list[Job] = []
    for one in sorted(kept, key=lambda each: each.began):
        for number in reversed(range(len(jobs))):
            if _is_of(one, jobs[number]):
                jobs[number] = Job((*jobs[number].nodes, one))
                break
        else:
            jobs.append(Job((one,)))
    return sorted(
        jobs,
        key=lambda job: (not job.derived, job.ended_badly, max(one.began for one in job.nodes)),
        reverse=True,
    )


def _is_of(one: Kept, job: Job) -> bool:
    """Whether a run folder is that of another node of a job."""
    return not one.derived and all(_beside(one, node) for node in job.nodes)


def _beside(one: Kept, other: Kept) -> bool:
    """Whether two nodes ran at one time, and met or have other ranks of a world of one size."""
    if other.derived or one.world_size != other.world_size:
        return False
    if max(one.began, other.began) > min(one.until, other.until) + CLOCKS_DIFFER_BY:
        return False
    if one.meeting and one.meeting == other.meeting:
        return True
    return bool(one.holders and other.holders) and one.holders.isdisjoint(other.holders)


def _kept(folder: RunFolder) -> Kept:
    """Read what tells it from others; what cannot be read of it says nothing."""
    try:
        case, record, verdict = within(READING_LIMIT_S, lambda: _read(folder))
    except NoAnswer:  # which is said when it is read as evidence
        case, record, verdict = None, None, None
    ended = [record.ended_at] if record is not None and record.ended_at else []
    moments = [*([case.taken_at, case.run.started_at] if case is not None else []), *ended]
    if record is not None:
        moments.append(record.started_at)
    times = [time for time in map(_moment, moments) if time is not None] or [EPOCH]
    views = case.ranks if case is not None else ()
    return Kept(
        folder=folder,
        began=min(times),
        until=max(times),
        world_size=case.run.world_size if case is not None else 0,
        holders=frozenset(view.rank for view in views if view.pid is not None),
        meeting=record.meeting if record is not None else "",
        derived=verdict is not None and verdict.seen_in == "files",
        verdict=verdict,
    )


def _read(folder: RunFolder) -> tuple[Case | None, RunRecord | None, Verdict | None]:
    return _case(folder), _part(folder, RunRecord), _part(folder, Verdict)


def _case(folder: RunFolder) -> Case | None:
    try:
        return newest_case(folder)[0]
    except UnreadableRun:
        return None


def _part(folder: RunFolder, kind: type[Part]) -> Part | None:
    file = folder.run_file if kind is RunRecord else folder.verdict_file
    try:
        return decode(read_owned(file, EVIDENCE_BYTES), kind, str(file))
    except (OSError, UnreadableRun):
        return None


def _moment(text: str) -> datetime | None:
    try:
        return read_utc(text)
    except ValueError:
        return None
