"""A run at one moment, read again and again, as `hangcheck report` does once: folder, pages, notes.

One fact a rank is made of what was read. Use and pace are measured between two readings of the same
process (`ProcessMeter`); GPUs are asked in a thread of their own, as a driver may take its time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.attach.recorded_session import RunningJob, RunningJobReader
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.judge.wording import exit_code_in_words, shell_code
from lightning_hangcheck.launch.run import ABORTED, ASKED_BY_US
from lightning_hangcheck.look.gpu import Gpus, gpus_of
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.model.beat import StepTimes
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.saved_run import (
    RunningRank,
    SavedRun,
    read_fact,
    read_saved_run,
)
from lightning_hangcheck.report.stragglers import LEAST_STEPS, compared, slower_part
from lightning_hangcheck.report.verdict_text import awaited, edges_by_source, equal_ranks
from lightning_hangcheck.rundir import folders_of_job
from lightning_hangcheck.text.shown import NANOSECONDS, read_utc, seconds_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.evidence import GpuState
    from lightning_hangcheck.model.verdict import State
    from lightning_hangcheck.report.saved_run import JournalEnd
    from lightning_hangcheck.rundir import RunFolder

Standing = Literal[
    "gone", "stuck", "stopped", "missing", "waits", "silent", "runs", "not here", "unseen", "ended"
]
"""In the order of the table, below the culprits; the first six are problems."""
ORDER: tuple[Standing, ...] = get_args(Standing)
STANDINGS: dict[State, Standing] = {
    "running": "runs",
    "waiting": "waits",
    "stalled": "stuck",
    "stopped": "stopped",
    "gone": "gone",
    "missing": "missing",
    "unseen": "unseen",
}
IN_FORCE = ("suspect", "hang", "dead", "crashed")
"""Verdicts whose table of ranks tells the present until the next one comes."""


class RankUse(Struct, frozen=True, kw_only=True):
    """What a rank uses and how fast it goes, measured between two readings.

    Attributes:
        step_now_s: Seconds of its newest step; of what passed since, where that is more.
        gpu_percent: Share of the time in which its GPUs worked.
        a_step: The mean of its newest timed steps, at least ten.
    """

    cpu_percent: float | None = None
    step_now_s: float | None = None
    gpu_percent: int | None = None
    gpu_bytes: int | None = None
    a_step: StepTimes | None = None


class RankNow(Struct, frozen=True, kw_only=True):
    """One rank at one moment; None and empty for what nobody tells.

    Attributes:
        culprit: The verdict in force names it.
        waits_for: Whom or what, and in what; of a rank that waits for no one, where it stands.
        slowest: Of the rank with more work of its own in a step than all others: times the median
            rank's, and where most of it differs.
        kept: The last checkpoint, in words, and ``kept_at`` when.
    """

    rank: int
    standing: Standing
    culprit: bool = False
    silent_s: float | None = None
    phase: str = ""
    waits_for: str = ""
    step: int | None = None
    step_s: float | None = None
    slowest: str = ""
    kept: str = ""
    kept_at: str = ""
    memory_bytes: int | None = None
    use: RankUse = RankUse()

    @property
    def has_problem(self) -> bool:
        """Whether it belongs to the top of the table."""
        return self.culprit or self.standing in ORDER[:6]


class RunNow(Struct, frozen=True, kw_only=True):
    """A run at one moment.

    Attributes:
        status: Whether and where it runs, in one clause.
        over: It has ended, or nothing more can be seen of it: why, in one clause; empty else.
        gaps: What could not be read, a sentence each.
    """

    shown_folder: str
    at: datetime
    status: str
    command: str = ""
    over: str = ""
    verdict: Verdict | None = None
    no_verdict: str = "no verdict yet"
    ranks: tuple[RankNow, ...] = ()
    gaps: tuple[str, ...] = ()

    @property
    def verdict_key(self) -> Hashable:
        """What tells a verdict from the one before; its seconds do not."""
        verdict = self.verdict
        return verdict and (verdict.verdict, verdict.cause, verdict.culprits)

    @property
    def change_key(self) -> Hashable:
        """What must differ for a new block where there is no terminal.

        Steps, phases and ages differ all the time; a rank that stands otherwise, passes a
        checkpoint or saves, and another verdict, are news.
        """
        ranks = tuple((row.rank, row.standing, row.culprit, row.kept) for row in self.ranks)
        return self.verdict_key, self.over, ranks


def ranks_now(
    *,
    running: Sequence[RunningRank] = (),
    verdict: Verdict | None = None,
    record: RunRecord | None = None,
    journals: Sequence[JournalEnd] = (),
    over: bool = False,
    here: bool = False,
    used: Mapping[int, RankUse] | None = None,
) -> tuple[RankNow, ...]:
    """Join what was read of a run: every rank known to be part of it, problems first, then by rank.

    A page tells the place of a rank, a verdict its standing. Where the run's session is ``here``, a
    rank without a page has ended.
    """
    # ranks that this machine's sidecar saw: one of them without a page has ended
    seen = {place.rank for place in record.ranks} if record is not None and here else set()
    found: dict[int, RankNow] = {}
    for rank in sorted(seen.union(range(record.world_size))) if record is not None else ():
        ended = over or rank in seen
        found[rank] = RankNow(rank=rank, standing="ended" if ended else "not here")
    for journal in journals:
        if journal.rank is None:
            continue
        mark, step = journal.checkpoint, journal.kept_step
        words = f"{mark.number}: {plain(mark.name)}" if mark else "none yet"
        found[journal.rank] = RankNow(
            rank=journal.rank,
            standing="ended" if over or journal.rank in seen else "unseen",
            kept=words if step is None else f"saved at step {step}",
            kept_at=mark.at if mark and step is None else "",
        )
    for row in _judged(verdict) if verdict is not None else ():
        # what a verdict in force says of a rank that is stuck or waits outlives its process
        ended = (over or row.rank in seen) and row.standing in ("runs", "unseen")
        found[row.rank] = replace(row, standing="ended") if ended else row
    saved = any(rank.beat.save is not None for rank in running)
    for page in running:
        known = found.get(page.rank) or RankNow(rank=page.rank, standing="runs")
        # a verdict in force says how a rank stands that runs, its page all else
        beat, state = page.beat, known.standing
        kept, kept_at = _kept(beat, saved=saved)
        if state not in ("gone", "stuck", "stopped", "waits"):
            # when its sidecar looks, too; before its pace is known, loading a model takes its time
            quiet_s = 10.0 if page.step_s is None else max(2.0, 3 * page.step_s)
            state = "silent" if page.silent_s >= quiet_s else "runs"
        inside = plain(str(beat.main_sections[-1])) if beat.main_sections else ""
        found[page.rank] = replace(
            known,
            standing=state,
            silent_s=page.silent_s,
            phase=beat.phase or known.phase,
            waits_for=known.waits_for or (f"in {inside}" if inside else ""),
            step=beat.step,
            step_s=page.step_s,
            kept=kept,
            kept_at=kept_at,
            memory_bytes=page.memory_bytes,
            use=(used or {}).get(page.rank, RankUse()),
        )
    steps = compared(
        {
            row.rank: row.use.a_step
            for row in found.values()
            if row.standing == "runs" and row.use.a_step is not None
        }
    )
    if steps is not None and steps.stands_out:  # the slowest of those that run, as at a run's end
        first = steps.ranks[0]
        why = f"x{first.ratio:.1f} {slower_part(first.mean, steps.typical)}"
        found[first.rank] = replace(found[first.rank], slowest=why)

    def place(row: RankNow) -> tuple[bool, int, bool, int]:
        return not row.culprit, ORDER.index(row.standing), not row.slowest, row.rank

    return tuple(sorted(found.values(), key=place))


def _kept(beat: Beat, *, saved: bool) -> tuple[str, str]:
    """The checkpoint to go on from, and when; before its first step the last one passed.

    Where some rank of the job has ``saved``, the others need no save of their own.
    """
    mark, save = beat.checkpoint, beat.save
    if save is not None:
        done, where = ("saved", "at") if save.number else ("goes on", "from")
        return f"{done}{'' if save.step is None else f' {where} step {save.step}'}", save.at
    if beat.step is not None:
        return "" if saved else "no save yet", ""
    return ("none yet", "") if mark is None else (f"{mark.number}: {plain(mark.name)}", mark.at)


def _judged(verdict: Verdict) -> Iterator[RankNow]:
    """Ranks as the newest verdict has them; one that is not in force tells only where they were."""
    in_force = verdict.verdict in IN_FORCE
    states = {state.rank: state for state in verdict.ranks}
    edges = edges_by_source(verdict)
    for situation, ranks, (example, *_) in equal_ranks(verdict):
        for rank in ranks:
            state = states.get(rank, example)
            targets = [edge.target for edge in edges.get(f"rank:{state.rank}", ())]
            waits = ""
            if whom := awaited(targets).removeprefix("for "):  # first: a narrow column cuts the end
                waits = f"{whom} {situation.doing}".rstrip()
            elif example.state in ("waiting", "stalled", "stopped"):
                waits = plain(situation.standing)
            yield RankNow(
                rank=rank,
                standing=STANDINGS[state.state] if in_force else "unseen",
                culprit=in_force and situation.is_culprit,
                phase=state.phase or "",
                waits_for=waits if in_force else "",
                step=state.step,
            )


class ProcessMeter:
    """Compares each reading of one process with those before; moments are monotonic."""

    def __init__(self) -> None:
        self._sums: deque[StepTimes] = deque()
        self._made: tuple[int, int] | None = None  # steps (or beats), and when the newest was made
        self._cpu: tuple[float, int] | None = None
        self._step_s: float | None = None
        self._cpu_percent: float | None = None

    def read(self, rank: RunningRank, now_ns: int, gpus: Sequence[GpuState]) -> RankUse:
        """Take a reading."""
        beat = rank.beat
        count = beat.beats if beat.step is None else beat.step
        if self._made is None or count < self._made[0]:
            self._made, self._cpu = (count, beat.last_beat_ns), None
            self._step_s = self._cpu_percent = None
        elif count > self._made[0]:
            made, passed_ns = count - self._made[0], beat.last_beat_ns - self._made[1]
            self._step_s = passed_ns / NANOSECONDS / made
            self._made = count, beat.last_beat_ns
        if rank.cpu_s is not None and self._cpu is None:
            self._cpu = rank.cpu_s, now_ns
        elif rank.cpu_s is not None and self._cpu is not None:
            elapsed_s = (now_ns - self._cpu[1]) / NANOSECONDS
            if elapsed_s >= 0.4:  # the kernel counts in ticks of 10 ms: over less it would jump
                self._cpu_percent = 100 * max(0.0, rank.cpu_s - self._cpu[0]) / elapsed_s
                self._cpu = rank.cpu_s, now_ns
        step_s = self._step_s
        if rank.step_s is not None and rank.silent_s > rank.step_s:
            step_s = max(step_s or 0.0, rank.silent_s)
        busy = [gpu.busy_percent for gpu in gpus if gpu.busy_percent is not None]
        memory = [gpu.own_memory_bytes for gpu in gpus if gpu.own_memory_bytes is not None]
        return RankUse(
            cpu_percent=self._cpu_percent,
            step_now_s=step_s,
            gpu_percent=max(busy, default=None),
            gpu_bytes=sum(memory) if memory else None,
            a_step=self._recent_step(beat.step_times),
        )

    def _recent_step(self, sums: StepTimes | None) -> StepTimes | None:
        """The mean of its newest timed steps, at least ten of them; None before there are."""
        if sums is None:
            return None
        kept = self._sums
        if kept and sums.steps < kept[-1].steps:
            kept.clear()
        if not kept:
            kept.append(StepTimes())  # what was timed before anybody looked counts as recent
        if sums.steps > kept[-1].steps:
            kept.append(sums)
        while len(kept) > 1 and sums.steps - kept[1].steps >= LEAST_STEPS:
            kept.popleft()
        recent = sums.since(kept[0])
        return recent.a_step() if recent.steps >= LEAST_STEPS else None


EVERY_S = 10.0  # Asking takes a process of its own and a tenth of a second: 1 % of a core.
ANSWER_LIMIT_S = 5.0


class GpuReader:
    """Asks for GPUs now and then, in a thread; where there is no driver it does nothing."""

    def __init__(self) -> None:
        self.newest: tuple[Gpus, tuple[str, ...]] = ({}, ())
        self._asking: threading.Thread | None = None
        self._ask_again_at = 0.0

    def ask(self, pids: Sequence[int]) -> None:
        """Ask again if it is time, for these ranks' processes; the answer comes later."""

        def work() -> None:
            found, gaps = gpus_of(tuple(pids), ANSWER_LIMIT_S)
            self.newest = found or {}, tuple(f"{gap.what}: {gap.reason}" for gap in gaps)

        free = self._asking is None or not self._asking.is_alive()
        if pids and free and time.monotonic() >= self._ask_again_at:
            self._ask_again_at = time.monotonic() + EVERY_S
            self._asking = threading.Thread(target=work, name="hangcheck-gpus", daemon=True)
            self._asking.start()


# A run, read again and again

STAT_LIMIT_S = 1.0
"""For the times of a few files: storage that takes longer is asked again at the next look."""
FOLDER_SHARE = 100  # A folder that takes 10 ms to read is read once a second at most: 1 % of a core
GONE_AFTER_S = 3.0
"""At a run's start its watcher has yet to come, and at its end ranks, watcher and session go one
after the other."""
QUIET_FOLDER_S = 600.0
"""A run of another machine is only its folder here; one in which nothing is new for so long ends
the view, which in a script would else never end."""
LEFT = "nobody records it on this machine any more, and its end was not written down"


class RunFollower:
    """Follows one run; its folder may be ``saved``, read just now."""

    def __init__(self, folder: RunFolder, shown_folder: str, saved: SavedRun | None = None) -> None:
        self._folder = folder
        self._shown_folder = shown_folder
        self._job = RunningJobReader(folder)
        self._meters: dict[int, ProcessMeter] = {}
        self._gpus = GpuReader()
        self._saved = saved
        self._record = saved.record if saved is not None else None
        self._mark: list[tuple[int, int]] = []
        self._changed_at = time.time()
        self._read_again_at = time.monotonic() + 1.0 if saved is not None else 0.0
        self._alive_at: float | None = None
        self._watched = False

    def read(self) -> RunNow:
        """Read the run as it is now.

        Raises:
            UnreadableRun: At the first reading: the folder holds no run, or nothing of it can be
                read and nothing of it runs here. Later ones show what was read before.
        """
        job = self._job.read()
        if job.watched or job.ranks or (job.here and self._alive_at is None):
            self._alive_at = time.monotonic()
        self._watched = self._watched or job.watched
        saved = self._read_folder(job)
        gpus, unread_gpus = self._gpus.newest
        pids = [rank.beat.pid for rank in job.ranks]
        if self._meters:  # a single reading has no time for an answer
            self._gpus.ask(pids)
        self._meters = {pid: self._meters.get(pid) or ProcessMeter() for pid in pids}
        used = {
            rank.rank: self._meters[pid].read(rank, job.read_ns, gpus.get(pid, ()))
            for rank, pid in zip(job.ranks, pids, strict=True)
        }
        over, record, verdict = self._over(), self._record, job.newest or saved.verdict
        gaps = [f"{gap.what}: {gap.reason}" for gap in saved.gaps]
        gaps = gaps or ([saved.refused] if saved.refused else [])
        return RunNow(
            shown_folder=self._shown_folder,
            at=datetime.now(timezone.utc),
            status=self._status(job),
            command="" if record is None else record.command,
            over=over,
            verdict=verdict,
            no_verdict=f"no verdict {'that can be read' if saved.refused else 'yet'}",
            ranks=ranks_now(
                running=job.ranks,
                verdict=verdict,
                record=record,
                journals=saved.journals,
                over=bool(over),
                here=job.here,
                used=used,
            ),
            gaps=(*gaps, *unread_gpus),
        )

    def _read_folder(self, job: RunningJob) -> SavedRun:
        """Read the folder where it changed since, and not too often but at the end of the run."""
        ending = self._alive_at is not None and not (job.watched or job.ranks)
        if self._saved is not None and not ending and time.monotonic() < self._read_again_at:
            return self._saved
        began_s, record_file = time.process_time(), self._folder.run_file
        try:
            mark, changed_at = within(STAT_LIMIT_S, lambda: _mark(self._folder))
            if self._saved is None or mark != self._mark:
                saved = read_saved_run(self._folder)
                self._record = within(STAT_LIMIT_S, lambda: read_fact(record_file, RunRecord))
                self._saved, self._mark, self._changed_at = saved, mark, changed_at
        except (NoAnswer, OSError, UnreadableRun) as error:
            if self._saved is None and not job.here:
                if isinstance(error, UnreadableRun):
                    raise
                raise UnreadableRun(
                    f"{self._folder.path} cannot be read ({error})",
                    "name a run folder that you may read",
                ) from error
            self._saved = self._saved or SavedRun(refused=str(error))
        self._read_again_at = time.monotonic() + FOLDER_SHARE * (time.process_time() - began_s)
        return self._saved

    def _over(self) -> str:
        """Why nothing more will come; empty while something may."""
        record = self._record
        if record is not None and record.ended_at is not None:
            return _ended(record, record.ended_at)
        if self._alive_at is not None:
            return LEFT if time.monotonic() - self._alive_at >= GONE_AFTER_S else ""
        if record is not None and "" != record.machine == which_machine():
            return LEFT  # by the machine: containers may share a host's name
        quiet_s = time.time() - self._changed_at
        if quiet_s < QUIET_FOLDER_S:
            return ""
        return f"nothing new in its folder for {seconds_in_words(round(quiet_s))}"

    def _status(self, job: RunningJob) -> str:
        if not job.here:
            return "followed by its folder: no process of it is on this machine"
        world, here = self._record.world_size if self._record is not None else 0, len(job.ranks)
        count = f"{here} of {several(world, 'rank')}" if world else several(here, "rank")
        gone = "its watcher is gone" if self._watched else "no watcher is there"
        unwatched = "" if job.watched else f"; {gone}, so nobody judges it"
        return f"{count} {'runs' if here == 1 else 'run'} here{unwatched}"


def _mark(folder: RunFolder) -> tuple[list[tuple[int, int]], float]:
    """Times and sizes of the files that are read; journals count, as they tell without a verdict.

    Returns:
        They, and when the newest of them changed.
    """
    folders = [session.journals for session in folders_of_job(folder) if session.journals.is_dir()]
    journals = [path for session in folders for path in sorted(session.iterdir())]
    files = [folder.verdict_file, folder.run_file, *journals]
    found = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
    newest = max((changed_ns for changed_ns, _ in found), default=0)
    return found, (newest or folder.path.stat().st_mtime_ns) / NANOSECONDS


def _ended(record: RunRecord, ended_at: str) -> str:
    try:
        lasted = (read_utc(ended_at) - read_utc(record.started_at)).total_seconds()
        after = f" after {seconds_in_words(lasted)}"
    except ValueError:
        after = ""
    code, by = record.exit_code, f", by {record.ended_by}" if record.ended_by else ""
    ended = f"the run has ended{after}"
    if code is None:
        return ended + by
    if record.ended_by.startswith(ASKED_BY_US):
        code = ABORTED  # the record keeps the command's code, `run` returned its own
    # the number alone where the end was asked for: what mostly sends such a signal did not
    return f"{ended}, exit code {f'{shell_code(code)}{by}' if by else exit_code_in_words(code)}"
