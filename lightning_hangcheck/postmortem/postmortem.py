"""Runs `hangcheck postmortem`: reads the files, joins and judges them, and saves the verdict."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.attach.several_nodes import merge_runs
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import EVIDENCE_BYTES, read_fact
from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.postmortem_facts import LogBook
from lightning_hangcheck.judge.postmortem_logs import find_in_logs
from lightning_hangcheck.judge.verdict import COSTS_THE_JOB
from lightning_hangcheck.judge.wording import UNKNOWN_S
from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap, ProcessLook, Sample
from lightning_hangcheck.model.flight import FLIGHT_RECORD
from lightning_hangcheck.model.left_behind import LeftBehind, LeftOut, ReadFile
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import MOST_LISTED, EvidenceItem, Verdict
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.postmortem.files import NotRead, opened, walk
from lightning_hangcheck.postmortem.flight_records import (
    Dump,
    is_record,
    of_one_incident,
    read_record,
)
from lightning_hangcheck.postmortem.stacks import StackDump, Text, read_text
from lightning_hangcheck.rundir import START_PREFIX, RunFolder
from lightning_hangcheck.text.moments import EPOCH, moment_of, read_utc, utc
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.time_limit import READING_LIMIT_S, NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lightning_hangcheck.model.left_behind import LogReading

Job: TypeAlias = "list[Kept]"
"""Run folders of one job, one per node."""
ENDED_BADLY = (*COSTS_THE_JOB, "suspect")
"""A suspicion counts: if the job is gone, the suspicion was never withdrawn."""
CLOCKS_DIFFER_BY = timedelta(minutes=2)
"""How far the clocks of two nodes may differ."""
ATTEMPT = re.compile(r"(.*/)attempt_(\d{1,6})/(?:(\d{1,6})/)?", re.DOTALL)
"""torchrun's folders of logs; those of one attempt are named by local rank."""
MOST_LEFT_OUT = 200
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


class Postmortem(NamedTuple):
    """The case, its verdict, the files used and left out, and the run folder that keeps them."""

    case: Case
    verdict: Verdict
    left: LeftBehind
    kept: RunFolder | None = None


def postmortem(named: Sequence[str], folder: RunFolder) -> Postmortem:
    """Explain a job from the files and folders that it left, and save the verdict.

    UnreadableRun if nothing can be read, UsedRunFolder if the folder holds another run.
    """
    left = read_left(named)
    jobs = _jobs_in(left.run_folders, {Path(name).absolute() for name in named})
    case, others = None, left.left_out
    left.left_out = [*map(_unused, jobs), *others]
    try:
        case = case_of(left, folder.run_id)
    except UnreadableRun:
        if not jobs:
            raise
    watched = bool(jobs) and not all(kept.derived for kept in jobs[0])
    if case is None or (watched and _verdict_of(jobs[0]) in ENDED_BADLY):
        return _of_run_folders(jobs[0], [*map(_unused, jobs[1:]), *others], case, folder)
    verdict = judge(case)
    kept = save_run(case, verdict, (), folder)
    return Postmortem(case, verdict, case.left or LeftBehind(), kept)


class Left(Struct):
    """What is at and below the named paths; ``written``: when, nanoseconds since 1970."""

    named: tuple[str, ...] = ()
    dumps: list[Dump] = []
    texts: list[Text] = []
    written: list[int] = []
    run_folders: list[RunFolder] = []
    left_out: list[LeftOut] = []


def read_left(named: Sequence[str]) -> Left:
    """Read the files at and below the paths; UnreadableRun if a named path does not exist."""
    left = Left(tuple(named))

    def leave(path: Path, why: str) -> None:
        if len(left.left_out) < MOST_LEFT_OUT:
            left.left_out.append(LeftOut(str(path), why))

    for path in walk(named, left.run_folders, leave):
        try:
            with opened(path) as (file, head):
                if is_record(head):
                    left.dumps.append(read_record(path, file))
                else:
                    left.texts.append(read_text(path, file, head))
            left.written.append(path.stat().st_mtime_ns)
        except NotRead as error:
            leave(path, str(error))
        except OSError as error:
            leave(path, f"it cannot be read ({error.strerror or error})")
        except MemoryError:
            leave(path, "it would take too much memory")
    return left


# One case of one job.


def case_of(left: Left, run_id: str) -> Case:
    """Build the case of one job from what was read, without run folders: each rank's evidence.

    ``run_id`` names the run folder that keeps it. UnreadableRun if nothing can be used.
    """
    dumps, others = of_one_incident(left.dumps)
    attempts = {text.log.file: ATTEMPT.match(text.log.file) for text in left.texts}
    in_order = sorted(filter(None, attempts.values()), key=lambda match: int(match[2]))
    last = {match[1]: match for match in in_order}  # torchrun's last attempt in each folder
    texts = [
        text
        for text in left.texts
        if (match := attempts[text.log.file]) is None or match[2] == last[match[1]][2]
    ]
    earlier = attempts.keys() - {text.log.file for text in texts}
    others += [LeftOut(file, "it is of an attempt before the last one") for file in sorted(earlier)]
    logs = _by_folders([text.log for text in texts if text.log.facts or not text.stacks])
    book = LogBook(logs)
    named = {*dumps, *(rank for log in logs for rank in log.ranks)}
    named |= {rank for fact in book.of("fingerprint") for rank in fact.ranks}
    if (from_logs := find_in_logs(book)) is not None:
        named |= {*from_logs.culprits, *from_logs.graph.waiters}
    took = [dump for text in texts for dump in text.stacks]
    stacks = {dump.rank: dump for dump in took if dump.rank is not None}
    unnamed = [dump for dump in took if dump.rank is None]
    lone = not (stacks or named) and bool(unnamed)
    if lone:
        stacks = {0: unnamed.pop(0)}
    others += [LeftOut(dump.file, NOT_NAMED) for dump in unnamed]
    named |= set(stacks)
    read = (
        *(ReadFile(dump.path, FLIGHT_RECORD, (rank,)) for rank, dump in sorted(dumps.items())),
        *(ReadFile(dump.file, "stack dump", (rank,)) for rank, dump in sorted(stacks.items())),
        *(ReadFile(log.file, "log", log.ranks) for log in logs),
    )
    if not read:
        whys = Counter(out.why for out in (*others, *left.left_out)).most_common(3)
        reasons = "; ".join(f"{count} files: {why}" if count > 1 else why for why, count in whys)
        raise UnreadableRun(
            f"nothing in {', '.join(left.named)[:200]} can be used"
            f"{f' ({reasons})' if reasons else ', it holds no file'}",
            "name flight-record dumps, logs, stack dumps or run folders of the job",
        )
    members = (len(dump.world) for dump in dumps.values())
    world_size = max([0, book.world, *members, *(rank + 1 for rank in named)])
    # if no dump has a time, file times bound the job: it began before they were written
    began = [dump.first_ns for dump in dumps.values() if dump.first_ns] or left.written
    ended = [dump.last_ns for dump in dumps.values() if dump.last_ns] or left.written
    unused = [*(out for out in left.left_out if FLIGHT_RECORD in out.why), *others][:MOST_GAPS]
    return Case(
        run=RunFacts(
            run_id=run_id,
            command="",
            started_at=utc(moment_of(min(began, default=0))),
            world_size=world_size,
        ),
        taken_at=utc(moment_of(max(ended, default=0))),
        taken_ns=int(UNKNOWN_S * NANOSECONDS),
        ranks=tuple(
            _view(rank, dumps.get(rank), stacks.get(rank))
            for rank in sorted({*named, *range(min(world_size, MOST_LISTED))})
        ),
        gaps=(
            *(Gap(f"{FLIGHT_RECORD} {out.path}", None, out.why, "flight_record") for out in unused),
            *(() if logs else (NO_LOGS,)),
            *((WHOSE_STACK,) if lone else ()),
        ),
        seen_in="files",
        left=LeftBehind(read=read, left_out=(*others, *left.left_out), logs=logs),
    )


def _by_folders(logs: Sequence[LogReading]) -> tuple[LogReading, ...]:
    """Put the logs in torchrun's folders to their ranks, by the first rank of the node.

    A rank's number in its own lines exceeds its local rank by that: by torch's tags, or, without
    any, by the numbers in the default group that two logs or more agree on.
    """
    places: dict[str, tuple[str, int]] = {}
    tagged: dict[str, set[int]] = defaultdict(set)
    bare: dict[str, list[int]] = defaultdict(list)
    for log in logs:
        if (found := ATTEMPT.match(log.file)) is not None and found[3] is not None:
            folder, local = places[log.file] = found[1], int(found[3])
            tagged[folder].update(rank - local for rank in log.ranks)
            waits = [fact for fact in log.facts if fact.kind in ("timeout", "status")]
            numbers = {wait.group_rank for wait in waits if wait.group in ("", "default")}
            bare[folder] += (number - local for number in numbers if number is not None)
    placed = []
    for log in logs:
        folder, local = places.get(log.file, ("", 0))
        agreed = tagged[folder] or (set(bare[folder]) if len(bare[folder]) > 1 else set())
        if len(agreed) == 1 and not log.ranks and (rank := local + min(agreed)) >= local:
            facts = (replace(fact, rank=rank) if fact.rank is None else fact for fact in log.facts)
            words = (replace(word, rank=rank) for word in log.last_words)
            log = replace(log, facts=tuple(facts), last_words=tuple(words), ranks=(rank,))
        placed.append(log)
    return tuple(placed)


def _view(rank: int, dump: Dump | None, stack: StackDump | None) -> RankView:
    """Make the view of a rank. A saved stack is of a stuck job; it does not say since when."""
    view = RankView(rank=rank, flight=dump.flight if dump is not None else None)
    if stack is None:
        return view
    pid, sample = stack.stack.pid, Sample(taken_ns=0, stack=stack.stack)
    look = ProcessLook(pid=pid, role="rank", samples=(sample,))
    return replace(view, pid=pid, processes=(look,), silent_for_s=UNKNOWN_S, idle_for_s=UNKNOWN_S)


# Run folders of nodes.


class Kept(NamedTuple):
    """What distinguishes a run folder from others; what cannot be read is left empty.

    Attributes:
        began: When the run began; ``until``: when it ended, or was last judged.
        holders: Ranks of which it saw a process.
        meeting: Where the nodes of its job met; empty if they did not.
        derived: `postmortem` or `merge` made it from other evidence.
    """

    folder: RunFolder
    began: datetime
    until: datetime
    world_size: int
    holders: frozenset[int]
    meeting: str
    derived: bool
    verdict: str

    def is_of_job_with(self, other: Kept) -> bool:
        """Whether both ran at one time, and met or have other ranks of an equal world size."""
        if self.derived or other.derived or self.world_size != other.world_size:
            return False
        if max(self.began, other.began) > min(self.until, other.until) + CLOCKS_DIFFER_BY:
            return False
        if self.meeting and self.meeting == other.meeting:
            return True
        return bool(self.holders and other.holders) and self.holders.isdisjoint(other.holders)


def _jobs_in(folders: Sequence[RunFolder], asked: set[Path]) -> list[Job]:
    """Group run folders by job; the job to explain, the newest that ended badly, comes first.

    A folder tree may hold every run of a project. All that were named are of one job.
    """
    kept = [_kept(folder) for folder in folders]
    if all(folder.path in asked for folder in folders):
        return [kept] if kept else []
    starts = (path for folder in folders for path in sorted(folder.path.glob(f"{START_PREFIX}*")))
    kept += [_kept(folder) for folder in map(RunFolder, starts) if folder.run_file.is_file()]
    jobs: list[Job] = []
    for other in sorted(kept, key=lambda each: each.began):
        same = (job for job in reversed(jobs) if all(map(other.is_of_job_with, job)))
        if (job := next(same, None)) is not None:
            job.append(other)
        else:
            jobs.append([other])

    def weight(job: Job) -> tuple[bool, bool, datetime]:
        derived = all(node.derived for node in job)
        return not derived, _verdict_of(job) in ENDED_BADLY, max(node.began for node in job)

    return sorted(jobs, key=weight, reverse=True)


def _kept(folder: RunFolder) -> Kept:
    def read() -> tuple[RunRecord | None, Verdict | None]:
        record = read_fact(folder.run_file, RunRecord, EVIDENCE_BYTES)
        return record, read_fact(folder.verdict_file, Verdict, EVIDENCE_BYTES)

    record, verdict = None, None
    with suppress(NoAnswer):  # reported when the folder is read as evidence
        record, verdict = within(READING_LIMIT_S, read)
    moments = [] if record is None else [record.started_at, record.ended_at or ""]
    moments += [] if verdict is None else [verdict.started_at, verdict.detected_at]
    times = []
    for moment in moments:
        with suppress(ValueError):
            times.append(read_utc(moment))
    rows = verdict.ranks if verdict is not None else ()
    return Kept(
        folder=folder,
        began=min(times, default=EPOCH),
        until=max(times, default=EPOCH),
        world_size=verdict.world_size if verdict is not None else 0,
        holders=frozenset(row.rank for row in rows if row.pid is not None),
        meeting=record.meeting if record is not None else "",
        derived=verdict is not None and verdict.seen_in == "files",
        verdict=verdict.verdict if verdict is not None else "",
    )


def _verdict_of(job: Job) -> str:
    """Return a bad verdict of the job, such as ``hang``; else any; empty if none can be read."""
    states = [kept.verdict for kept in job if kept.verdict]
    return next((state for state in states if state in ENDED_BADLY), states[0] if states else "")


def _unused(job: Job) -> LeftOut:
    state = _verdict_of(job)
    why = f"another run, {state.upper()}: name it by itself to read it"
    if all(kept.derived for kept in job):
        why = "it was made from other evidence, by postmortem or merge"
    elif not state:
        why = "a run folder that holds no verdict"
    elif state not in ENDED_BADLY:
        why = f"a run that shows nothing wrong ({state.upper()})"
    return LeftOut(str(job[0].folder.path), why)


def _of_run_folders(
    job: Job, left_out: Sequence[LeftOut], of_files: Case | None, folder: RunFolder
) -> Postmortem:
    """Explain what a watcher saw; what other files say is only quoted and proves nothing."""
    also: list[EvidenceItem] = []
    left = LeftBehind(left_out=tuple(left_out))
    if of_files is not None and of_files.left is not None:
        left, by_files = of_files.left, judge(of_files)
        if by_files.verdict in ENDED_BADLY:
            also = [EvidenceItem("also", None, f"other files say: {by_files.summary}")]
    paths = [str(kept.folder.path) for kept in job]
    merged = merge_runs(paths, folder, also)
    refused = {gap.what.removeprefix("run folder "): gap.reason for gap in merged.left_out}
    read = [ReadFile(path, "run folder") for path in paths if path not in refused]
    out = [LeftOut(path, why) for path, why in refused.items()]
    out += [skipped for skipped in left.left_out if skipped.path not in paths]
    left = replace(left, read=(*read, *left.read), left_out=tuple(out))
    return Postmortem(merged.case, merged.verdict, left, merged.kept)
