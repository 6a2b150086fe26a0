"""Reads a run repeatedly, as `hangcheck report` does once: folder, pages, notes.

The result is one `RankNow` per rank. Use and pace are measured between two readings of the same
process (`ProcessMeter`). GPUs are queried in a separate thread, as drivers may be slow.
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
from lightning_hangcheck.report.journals import folders_of_job
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.saved_run import (
    RunningRank,
    SavedRun,
    read_fact,
    read_saved_run,
)
from lightning_hangcheck.report.stragglers import LEAST_STEPS, compared, slower_part
from lightning_hangcheck.report.verdict_text import awaited, edges_by_source, equal_ranks
from lightning_hangcheck.text.moments import read_utc
from lightning_hangcheck.text.shown import NANOSECONDS, seconds_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.evidence import GpuState
    from lightning_hangcheck.model.verdict import State
    from lightning_hangcheck.report.saved_run import JournalEnd
    from lightning_hangcheck.rundir import RunFolder

RowState = Literal[
    "gone", "stuck", "stopped", "missing", "waits", "silent", "runs", "not here", "unseen", "ended"
]
"""In table order, below the culprits; the first six are problems."""
ORDER: tuple[RowState, ...] = get_args(RowState)
ROW_STATES: dict[State, RowState] = {
    "running": "runs",
    "waiting": "waits",
    "stalled": "stuck",
    "stopped": "stopped",
    "gone": "gone",
    "missing": "missing",
    "unseen": "unseen",
}
IN_FORCE = ("suspect", "hang", "dead", "crashed")
"""Verdicts whose table of ranks holds until the next verdict."""


class RankUse(Struct, frozen=True, kw_only=True):
    """A rank's use of resources and its pace, measured between two readings.

    Attributes:
        step_now_s: Seconds of the newest step, or the time since then if longer.
        gpu_percent: Share of time in which the rank's GPUs were busy.
        a_step: Mean of the newest timed steps, at least ten.
    """

    cpu_percent: float | None = None
    step_now_s: float | None = None
    gpu_percent: int | None = None
    gpu_bytes: int | None = None
    a_step: StepTimes | None = None


class RankNow(Struct, frozen=True, kw_only=True):
    """A rank at one moment; None or empty if unknown.

    Attributes:
        culprit: The current verdict names the rank.
        waits_for: What the rank waits for, and in what; otherwise where it is.
        slowest: For the rank with most work of its own per step: ratio to the median rank, and the
            part of the step that differs most.
        kept: The last checkpoint, in words; ``kept_at`` is its time.
    """

    rank: int
    state: RowState
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
        """Whether the rank belongs to the top of the table."""
        return self.culprit or self.state in ORDER[:6]


class RunNow(Struct, frozen=True, kw_only=True):
    """A run at one moment.

    Attributes:
        status: Whether and where it runs, in one clause.
        over: Why no more news will come, in one clause; empty while the run can be followed.
        gaps: What could not be read, one sentence each.
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
        """Identifies a verdict; its times do not matter."""
        verdict = self.verdict
        return verdict and (verdict.verdict, verdict.cause, verdict.culprits)

    @property
    def change_key(self) -> Hashable:
        """What must change for a new block without a terminal: not steps, phases or ages."""
        ranks = tuple((row.rank, row.state, row.culprit, row.kept) for row in self.ranks)
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
    """Join what was read into one entry per known rank: problems first, then by rank.

    A page says where a rank is, a verdict its state. If the run's session is ``here``, a rank
    without a page has ended.
    """
    # ranks that this machine's sidecar saw; if one has no page, it has ended
    seen = {place.rank for place in record.ranks} if record is not None and here else set()
    found: dict[int, RankNow] = {}
    for rank in sorted(seen.union(range(record.world_size))) if record is not None else ():
        ended = over or rank in seen
        found[rank] = RankNow(rank=rank, state="ended" if ended else "not here")
    for journal in journals:
        if journal.rank is None:
            continue
        mark, step = journal.checkpoint, journal.kept_step
        words = f"{mark.number}: {plain(mark.name)}" if mark else "none yet"
        found[journal.rank] = RankNow(
            rank=journal.rank,
            state="ended" if over or journal.rank in seen else "unseen",
            kept=words if step is None else f"saved at step {step}",
            kept_at=mark.at if mark and step is None else "",
        )
    for row in _judged(verdict) if verdict is not None else ():
        # a verdict in force that a rank is stuck or waits outlives its process
        ended = (over or row.rank in seen) and row.state in ("runs", "unseen")
        found[row.rank] = replace(row, state="ended") if ended else row
    saved = any(rank.beat.save is not None for rank in running)
    for page in running:
        known = found.get(page.rank) or RankNow(rank=page.rank, state="runs")
        # a verdict in force gives the state of a running rank, its page all else
        beat, state = page.beat, known.state
        kept, kept_at = _kept(beat, saved=saved)
        if state not in ("gone", "stuck", "stopped", "waits"):
            # as for the sidecar's looks; 10 s without a known pace, as loading a model takes time
            quiet_s = 10.0 if page.step_s is None else max(2.0, 3 * page.step_s)
            state = "silent" if page.silent_s >= quiet_s else "runs"
        inside = plain(str(beat.main_sections[-1])) if beat.main_sections else ""
        found[page.rank] = replace(
            known,
            state=state,
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
            if row.state == "runs" and row.use.a_step is not None
        }
    )
    if steps is not None and steps.stands_out:  # slowest of running ranks, as at a run's end
        first = steps.ranks[0]
        why = f"x{first.ratio:.1f} {slower_part(first.mean, steps.typical)}"
        found[first.rank] = replace(found[first.rank], slowest=why)

    def place(row: RankNow) -> tuple[bool, int, bool, int]:
        return not row.culprit, ORDER.index(row.state), not row.slowest, row.rank

    return tuple(sorted(found.values(), key=place))


def _kept(beat: Beat, *, saved: bool) -> tuple[str, str]:
    """Return the newest save and its time; before the first step, the last checkpoint passed.

    If some rank of the job has ``saved``, the others need no save of their own.
    """
    mark, save = beat.checkpoint, beat.save
    if save is not None:
        done, where = ("saved", "at") if save.number else ("goes on", "from")
        return f"{done}{'' if save.step is None else f' {where} step {save.step}'}", save.at
    if beat.step is not None:
        return "" if saved else "no save yet", ""
    return ("none yet", "") if mark is None else (f"{mark.number}: {plain(mark.name)}", mark.at)


def _judged(verdict: Verdict) -> Iterator[RankNow]:
    """Yield ranks as the newest verdict has them; if it is not in force, only phase and step."""
    in_force = verdict.verdict in IN_FORCE
    states = {state.rank: state for state in verdict.ranks}
    edges = edges_by_source(verdict)
    for situation, ranks, (example, *_) in equal_ranks(verdict):
        for rank in ranks:
            state = states.get(rank, example)
            targets = [edge.target for edge in edges.get(f"rank:{state.rank}", ())]
            waits = ""
            if whom := awaited(targets).removeprefix("for "):  # narrow columns cut the end
                waits = f"{whom} {situation.doing}".rstrip()
            elif example.state in ("waiting", "stalled", "stopped"):
                waits = plain(situation.location)
            yield RankNow(
                rank=rank,
                state=ROW_STATES[state.state] if in_force else "unseen",
                culprit=in_force and situation.is_culprit,
                phase=state.phase or "",
                waits_for=waits if in_force else "",
                step=state.step,
            )


class ProcessMeter:
    """Compares readings of one process; times are monotonic."""

    def __init__(self) -> None:
        self._sums: deque[StepTimes] = deque()
        self._made: tuple[int, int] | None = None  # steps (or beats), and when the newest was made
        self._cpu: tuple[float, int] | None = None
        self._step_s: float | None = None
        self._cpu_percent: float | None = None

    def read(self, rank: RunningRank, now_ns: int, gpus: Sequence[GpuState]) -> RankUse:
        """Add a reading, and return the use since earlier ones."""
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
            if elapsed_s >= 0.4:  # less would jump: the kernel counts ticks of 10 ms
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
        """Return the mean of the newest timed steps, at least ten; None if there are fewer."""
        if sums is None:
            return None
        kept = self._sums
        if kept and sums.steps < kept[-1].steps:
            kept.clear()
        if not kept:
            kept.append(StepTimes())  # what was timed before the first reading counts as recent
        if sums.steps > kept[-1].steps:
            kept.append(sums)
        while len(kept) > 1 and sums.steps - kept[1].steps >= LEAST_STEPS:
            kept.popleft()
        recent = sums.since(kept[0])
        return recent.a_step() if recent.steps >= LEAST_STEPS else None


EVERY_S = 10.0  # A query takes a process and 0.1 s: 1 % of a core.
ANSWER_LIMIT_S = 5.0


class GpuReader:
    """Queries GPUs at intervals in a thread; without a driver, does nothing."""

    def __init__(self) -> None:
        self.newest: tuple[Gpus, tuple[str, ...]] = ({}, ())
        self._asking: threading.Thread | None = None
        self._ask_again_at = 0.0

    def ask(self, pids: Sequence[int]) -> None:
        """Start a query for these processes if one is due; the answer comes later."""

        def work() -> None:
            found, gaps = gpus_of(tuple(pids), ANSWER_LIMIT_S)
            self.newest = found or {}, tuple(f"{gap.what}: {gap.reason}" for gap in gaps)

        free = self._asking is None or not self._asking.is_alive()
        if pids and free and time.monotonic() >= self._ask_again_at:
            self._ask_again_at = time.monotonic() + EVERY_S
            self._asking = threading.Thread(target=work, name="hangcheck-gpus", daemon=True)
            self._asking.start()


# A run, read repeatedly

STAT_LIMIT_S = 1.0
"""For the times of a few files; slower storage is asked again at the next reading."""
FOLDER_SHARE = 100  # A folder read in 10 ms is read at most once per second: 1 % of a core
GONE_AFTER_S = 3.0
"""At a run's start its watcher comes late; at its end ranks, watcher and session end in turn."""
QUIET_FOLDER_S = 600.0
"""The view of a run on another machine sees only its folder; without news for this time the view
ends, as it would otherwise never end in a script."""
LEFT = "nobody records it on this machine any more, and its end was not written down"


class RunFollower:
    """Follows one run; ``saved`` is its folder, if just read."""

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
        """Read the current state of the run.

        Raises:
            UnreadableRun: At the first reading: the folder holds no run, or nothing of the run can
                be read and nothing of it runs here. Later readings show what was read before.
        """
        job = self._job.read()
        if job.watched or job.ranks or (job.here and self._alive_at is None):
            self._alive_at = time.monotonic()
        self._watched = self._watched or job.watched
        saved = self._read_folder(job)
        gpus, unread_gpus = self._gpus.newest
        pids = [rank.beat.pid for rank in job.ranks]
        if self._meters:  # a single reading cannot wait for the answer
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
        """Read the folder if it changed, at a limited rate except at the run's end."""
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
        """Return why no more news will come; empty while some may."""
        record = self._record
        if record is not None and record.ended_at is not None:
            return _ended(record, record.ended_at)
        newest = self._saved.verdict if self._saved is not None else None
        if newest is not None and newest.seen_in in ("attach", "files"):
            return "it is one look at the job, which nobody watches"
        if self._alive_at is not None:
            return LEFT if time.monotonic() - self._alive_at >= GONE_AFTER_S else ""
        if record is not None and "" != record.machine == which_machine():
            return LEFT  # compare machines, as containers may share a host name
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
    """Return times and sizes of the files read, journals included, and the newest time in s."""
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
        code = ABORTED  # the record keeps the command's code; `run` returned its own
    # only the number if the end was requested: the usual sender of such a signal did not send it
    return f"{ended}, exit code {f'{shell_code(code)}{by}' if by else exit_code_in_words(code)}"
