"""What leaves the sidecar, in this order: evidence to disk, message to the launcher, text.

One thread writes the run folder and may wait for it. `log` prints text in a thread of its own,
which may wait for its reader. A messenger, a separate process, sends alerts. The loop waits for
none of them: it asks what is saved by now, and reports late verdicts anyway.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import alerts, log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files import (
    FOR_ALL,
    NoAnswerFromStorage,
    apart,
    read_fact,
    reserve_file,
    write_atomically,
)
from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import Run
from lightning_hangcheck.ledger.spending import Stalls, longest_first
from lightning_hangcheck.look.gpu import gpu_names
from lightning_hangcheck.machine import require_room, which_machine
from lightning_hangcheck.model.codec import encode, encode_pretty
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RankPlace, RankRecord, Round, RunRecord
from lightning_hangcheck.observe import run_record
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.report.verdict_text import render, render_again, render_line, render_short
from lightning_hangcheck.rundir import RUNS_FOLDER, RunFolder, prepare_run_folder
from lightning_hangcheck.session.journal_carrier import REMOVED, Carrier
from lightning_hangcheck.text.shown import NANOSECONDS, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.slugs import Phase
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.incident import Incident, Telling
    from lightning_hangcheck.watch.link import HangProven
    from lightning_hangcheck.watch.roster import Roster

CARRY_EVERY_S = 0.5
"""How far the journals in the run folder may be behind; each update lists shared memory."""
SILENT_AFTER_S, WAIT_AT_THE_END_S = 5.0, 1.0
"""A busy disk takes 1 to 2 s for a write, and a write that takes this long is reported. At its end
the job waits this long for a write."""
TOLD_AFTER_S = 5.0
"""A verdict is reported after this time even if it is not saved. A job of several nodes is ended
only then: other nodes read this node's messages once a second while anything is silent."""
MOST_WAITING = 100
"""Pieces of work queued while the storage is silent; a verdict of 8 ranks is about 200 KB."""
METRICS_SILENT_AFTER_S = 15.0
"""Three writes are due in this time."""
MESSENGER_TASKS = 8
"""Threads and processes of a messenger: itself, one for each address, a shell and what it runs."""
LONGEST_TEXT = 2000
"""Characters; services cut longer texts, and a summary is one sentence."""


@dataclass
class _Publication:
    """A verdict to report: due once its saving was ``tried``, or took too long."""

    verdict: Verdict
    text: str
    hang: HangProven | None
    by_s: float
    saved_as: int | None = None
    tried: bool = False

    @property
    def is_due(self) -> bool:
        return self.tried or time.monotonic() >= self.by_s


class Writer:
    """Saves and prints verdicts, and carries the ranks' journals to the run folder.

    The process cannot exit while its thread waits in the kernel, so others wait for its message
    instead of its exit. ``seen`` gets the journals' lines. ``tell_launcher`` gets a proven hang,
    its verdict and its number; the launcher may then end the job. ``newest`` is the last published
    verdict, of ``published_ns``.
    """

    def __init__(
        self,
        folder: RunFolder,
        journals: Path,
        seen: Callable[[bytes], object] = bool,
        *,
        quiet: bool = False,
        tell_launcher: Callable[[HangProven, Verdict, int | None], object] | None = None,
        ends_the_job: bool = False,
    ) -> None:
        self.folder = folder
        self.newest: Verdict | None = None
        self.published_ns = 0
        self.stalls = Stalls()
        self._journals = Carrier(journals, partial(prepare_run_folder, folder), seen)
        self._quiet = quiet
        self._tell_launcher = tell_launcher
        self._ends_the_job = ends_the_job
        self._reported = False
        self._unsaid: deque[_Publication] = deque()
        self._hang: _Publication | None = None
        self._number: int | None = None
        self._unsaved: tuple[Gap, ...] = ()
        self._page: Callable[[], object] | None = None
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._write, name="hangcheck-writer", daemon=True)
        self._thread.start()

    @property
    def waits(self) -> bool:
        """Whether a verdict is on its way out: `tell` must be called again soon."""
        return bool(self._unsaid) or self._hang is not None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What the run folder lacks: journals that somebody removed, and unsaved verdicts."""
        removed = self._journals.removed
        if not removed:
            return self._unsaved
        what = f"{len(removed)} journals" if len(removed) > 1 else f"journal {next(iter(removed))}"
        why = f"{sum(removed.values()):,} lines are missing: {REMOVED}"
        way = "keep the run folder until the job has ended"
        return (Gap(what, None, why, "journal", way), *self._unsaved)

    def publish(
        self, case: Case, verdict: Verdict, telling: Telling, hang: HangProven | None = None
    ) -> None:
        """Have a verdict saved with its evidence, then reported."""
        self.newest, self.published_ns = verdict, time.monotonic_ns()
        self.stalls.take(verdict, self.published_ns)
        by_s = time.monotonic() + TOLD_AFTER_S
        news = _Publication(verdict, self._text(case, verdict, telling), hang, by_s)
        self._unsaid.append(news)
        self._hang = self._hang if hang is None else news

        def save() -> None:
            """Number it after verdicts of an earlier sidecar of this run: none is overwritten."""
            try:
                if self._number is None:
                    numbers = (*self.folder.verdict_numbers(), *self.folder.evidence_numbers())
                    self._number = max(numbers, default=0)
                self._number += 1
                run_record.save_verdict(self.folder, self._number, case, verdict)
                news.saved_as = self._number
                goes_on = not case.ended and case.aftermath is None
                self._page = partial(
                    run_record.save_page, self.folder, self._number, case, verdict, goes_on=goes_on
                )
            except Exception as error:
                what = f"a verdict {verdict.verdict} before this"
                why = f"it could not be saved ({type(error).__name__}: {error})"
                self._unsaved = (Gap(what, None, why, "saved_evidence"),)
                raise
            finally:
                news.tried = True

        self.save(save)

    def tell(self, *, stands: bool = True, alone: bool = True, at_once: bool = False) -> None:
        """Report verdicts that are saved or late: first to the launcher, then as text.

        A job that moves again is not ended for a hang that no longer ``stands``. An ended job's
        store goes, by which other nodes hear of the hang: unless this node is ``alone``, they get
        time to read it before.
        """
        hang = self._hang
        if hang is not None and not at_once and self._ends_the_job and not stands:
            self._hang = None
        elif hang is not None:
            readable = alone or not self._ends_the_job or time.monotonic() >= hang.by_s
            if at_once or (readable and hang.is_due):
                self._hang = None
                if self._tell_launcher is not None and hang.hang is not None:
                    self._tell_launcher(hang.hang, hang.verdict, hang.saved_as)
        while self._unsaid and (at_once or self._unsaid[0].is_due):
            text = self._unsaid.popleft().text
            if text:
                log.say(text)

    def say(self, text: str) -> None:
        """Print text that is neither a verdict nor an error."""
        if not self._quiet:
            log.say(text)

    def save(self, job: Callable[[], object]) -> None:
        """Queue work on the run folder, behind earlier work; drop it if too much waits."""
        if self._work.qsize() < MOST_WAITING:
            self._work.put(job)

    def watch_storage(self) -> None:
        """Report once that the run folder does not answer; call this now and then."""
        since_s = self._busy_since
        seconds = 0.0 if since_s is None else time.monotonic() - since_s
        if seconds >= SILENT_AFTER_S:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
            self._say_silent(
                f" since {since}; training goes on, journals and evidence are kept in memory; if "
                "it stays silent,"
            )

    def _say_silent(self, what: str) -> None:
        silent = f"the run folder {self.folder.path} does not answer"
        way = "name a folder on other storage: --run-dir or HANGCHECK_RUN_DIR"
        log.once("storage", f"{silent}{what} {way}")

    def close(self, time_limit_s: float) -> None:
        """Finish writing within a time limit, and do not wait for storage that does not answer."""
        self._work.put(None)
        deadline = time.monotonic() + time_limit_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            self.tell()
            since_s = self._busy_since
            if since_s is not None and time.monotonic() - since_s >= WAIT_AT_THE_END_S:
                break
            self._thread.join(0.05)
        if self._thread.is_alive():
            self._say_silent("; what is not in it by now is lost, verdicts are on the console;")
        self.tell(at_once=True)

    def _text(self, case: Case, verdict: Verdict, telling: Telling) -> str:
        """Return the text to print; whoever saw a report also sees how its alarm ends."""
        folder = str(self.folder.path)
        try:
            if telling in ("line", "named"):
                if self._quiet and not self._reported:
                    return ""
                finished = verdict.verdict == "finished"
                below = stragglers_lines(find_stragglers(case)) if finished else []
                return "\n".join([render_short(verdict, folder), *below])
            if telling == "report":
                self._reported = True
                return render(case, verdict, folder)
            return render_again(verdict, folder) if telling == "aftermath" else ""
        except Exception as error:  # noqa: BLE001 - the verdict is printed even if its form fails
            log.once("text", f"a verdict could not be shown in its form ({error!r})")
            return f"{verdict.verdict.upper()}  {verdict.summary}"

    def _write(self) -> None:
        carry = self._journals.carry
        while True:
            try:
                job = self._work.get(timeout=CARRY_EVERY_S)
            except queue.Empty:
                job = carry
            self._do(job or carry)
            page = self._page
            if page is not None and (job is None or self._work.empty()):
                # only if nothing else waits: a job may be ended once the evidence is saved
                self._page = None
                self._do(carry)
                self._do(page)
            if job is None:
                return

    def _do(self, job: Callable[[], object]) -> None:
        self._busy_since = time.monotonic()
        try:
            job()
        except (OSError, UnpreparedRunFolder) as error:
            log.once(
                "run folder",
                f"the run folder {self.folder.path} cannot be written ({error}): "
                "verdicts are printed but not saved; free space, or name another --run-dir",
            )
        except Exception as error:  # noqa: BLE001 - the thread goes on: later evidence is saved
            log.once("writer", f"a file of the run was not written ({error!r}); the watch goes on")
        finally:
            self._busy_since = None


class NewestOnly:
    """Writes a file in a thread; what comes while a write is under way is dropped."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._since_s = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hangcheck-metrics")
        self._writing: Future[None] | None = None

    def write(self, data: bytes) -> None:
        """Write the data in the thread, unless the last write is still under way."""
        now_s = time.monotonic()
        if self._writing is None or self._writing.done():
            self._since_s, self._writing = now_s, self._pool.submit(self._write, data)
        elif now_s - self._since_s >= METRICS_SILENT_AFTER_S:
            self._say(f"has not answered for {METRICS_SILENT_AFTER_S:g} s")

    def close(self, last: bytes, time_limit_s: float) -> None:
        """Write the last data, within a time limit."""
        try:
            self._pool.submit(self._write, last).result(time_limit_s)
        except FuturesTimeoutError:
            self._say("does not answer; the end of the run is not in it")
        self._pool.shutdown(wait=False)

    def _write(self, data: bytes) -> None:
        try:
            write_atomically(self._file, data, FOR_ALL)
        except OSError as error:
            self._say(f"cannot be written ({error.strerror})")

    def _say(self, trouble: str) -> None:
        log.once("metrics", f"the metrics file {self._file} {trouble}; watching goes on")


class Alerting:
    """Alerts people: starts a messenger process for each hang, and never waits for it."""

    def __init__(self) -> None:
        self.asked_for = alerts.AlertsAskedFor()
        self._under_way: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []

    def tell(self, verdict: Verdict, run_dir: str, number: int | None) -> None:
        """Start a messenger that reports a hang."""
        if not self.asked_for.any:
            return
        run_id, cause = run_dir.rpartition("/")[2], verdict.cause or ""
        news = alerts.HangNews(
            kind=verdict.verdict,
            cause=cause or "unknown",
            culprits=verdict.culprits,
            title=f"{verdict.verdict.upper()} {cause} in {run_id}".replace("  ", " "),
            text=render_line(verdict)[:LONGEST_TEXT],
            run_dir=run_dir,
            number=number,
        )
        delivery = encode(alerts.Delivery(self.asked_for, news))

        def send() -> None:
            try:
                require_room(MESSENGER_TASKS)
                messenger = subprocess.Popen(
                    own_command("lightning_hangcheck.alerts"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env=environment_of_module(),
                    start_new_session=True,
                )
            except (OSError, RuntimeError) as error:  # no process, or no thread
                why = f"no process can be started ({error})"
                log.once("messenger", f"nobody was told of the hang: {why}")
                return
            self._under_way.append(messenger)
            if messenger.stdin is not None:
                with suppress(BrokenPipeError), messenger.stdin as pipe:
                    pipe.write(delivery)

        # in a thread: the environment may exceed what the pipe holds until the messenger reads
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        self._threads.append(thread)

    def close(self) -> None:
        """Wait for messengers, within a limit; then end them and say so."""
        deadline = time.monotonic() + alerts.AT_THE_END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for messenger in self._under_way:
            with suppress(subprocess.TimeoutExpired):
                messenger.wait(max(0.0, deadline - time.monotonic()))
        late = [popen for popen in self._under_way if popen.poll() is None]
        for messenger in late:
            log.once(
                "messenger late",
                f"what was to be done on the hang took {alerts.AT_THE_END_S:g} s longer than the "
                "job, and is ended",
            )
            messenger.terminate()
        for messenger in late:
            with suppress(subprocess.TimeoutExpired):
                messenger.wait(1.0)
            messenger.kill()


# The files that describe a run, while it lasts and when it ends, made from its ranks:
#
#     run.json      its ranks and rounds: when a rank appears, and at the end
#     watch.json    what is known of each rank now, for visitors; once a second, in shared memory
#     state         one byte of shared memory: the verdict as a number, for `HangCheck` to log
#     ledger.jsonl  one line on the run's outcome
#     metrics file  of ``--prometheus``, for node-exporter's textfile collector

READ_LIMIT_S = 2.0
"""Limit for one small file; slower storage loses the rounds before this sidecar."""
NOTES_EVERY_S, METRICS_EVERY_S = 1.0, 5.0
"""A note of eight ranks costs the sidecar 0.1 ms; `hangcheck attach` looks for 2 s. Prometheus asks
every 15 s by habit. A published verdict is written at once."""
METRICS_END_LIMIT_S = 1.0
GPU_LIMIT_S = 3.0
"""Asked at the run's start, by the writing thread; a driver that wakes 8 GPUs takes 1 s."""


class RunFiles:
    """Keeps these files; ``meeting`` and ``node`` are as in `RunRecord`."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        writer: Writer,
        roster: Roster,
        offloaded: Iterable[str],
    ) -> None:
        self._offloaded = offloaded
        self.meeting = ""
        self.node: int | None = None
        self._session = session
        self._writer = writer
        self._roster = roster
        self._ledger = settings.ledger
        self._began_ns = time.monotonic_ns()
        self._gpus: tuple[str, ...] = ()
        self._records: dict[tuple[int, int], RankRecord] = {}
        self._versions: dict[str, str] = {}
        self._recorded: object = None
        self._published_ns = self._noted_ns = self._measured_ns = 0
        metrics = settings.prometheus
        self._metrics = None if metrics is None else NewestOnly(Path(metrics).absolute())

        def learn_gpus() -> None:
            self._gpus = gpu_names(GPU_LIMIT_S)

        writer.save(learn_gpus)

    def keep(self, alarm: Incident, earlier: tuple[Round, ...], now_ns: int) -> None:
        """Write what is due."""
        # run.json: if a rank appeared or changed its process since, or a round ended
        watched = self._roster.round
        pids = [
            (rank, watched_rank.found.pid) for rank, watched_rank in sorted(watched.ranks.items())
        ]
        where = (self.meeting, self.node)
        shown = (watched.number, watched.world_size, pids, earlier, where)
        if shown != self._recorded:
            self._recorded = shown
            present = Round(
                number=watched.number,
                started_at=watched.started_at,
                world_size=watched.world_size,
                ranks=tuple(RankPlace(rank=rank, host=watched.host, pid=pid) for rank, pid in pids),
            )
            self._save_record((*earlier, present) if pids else earlier)
        news = self._writer.published_ns != self._published_ns
        self._published_ns = self._writer.published_ns
        if news or now_ns - self._noted_ns >= NOTES_EVERY_S * NANOSECONDS:
            self._noted_ns = now_ns
            self._write_notes(now_ns)
        measured = now_ns - self._measured_ns < METRICS_EVERY_S * NANOSECONDS
        if self._metrics is not None and (news or not measured):
            self._measured_ns = now_ns
            self._metrics.write(self._reading(alarm, now_ns))

    def end(
        self,
        alarm: Incident,
        verdict: Verdict,
        rounds: tuple[Round, ...],
        exit_code: int | None,
        ended_by: str,
    ) -> None:
        """Write how the run ended."""
        watched, now_ns, ended_at = self._roster.round, time.monotonic_ns(), utc_now()
        self._save_record(rounds, ended_at=ended_at, exit_code=exit_code, ended_by=ended_by)
        seconds: dict[Phase, float] = {}
        for rank in watched.ranks.values():
            for phase in rank.spending.spent().phases:
                seconds[phase.phase] = seconds.get(phase.phase, 0.0) + phase.seconds
        facts = self._session.facts
        line = Run(
            at=ended_at,
            run_id=self._session.run_folder.run_id,
            command=facts.command,
            started_at=facts.started_at,
            duration_s=round((now_ns - self._began_ns) / NANOSECONDS, 3),
            ranks=len(watched.ranks),
            host=watched.host,
            gpus=self._gpus,
            verdict=verdict.verdict,
            exit_code=exit_code,
            spent=longest_first(seconds),
            stalls=self._writer.stalls.ended(now_ns),
        )
        self._writer.save(partial(self._write_ledger, line))
        if self._metrics is not None:
            reading = self._reading(alarm, now_ns, verdict=verdict, exit_code=exit_code)
            self._metrics.close(reading, METRICS_END_LIMIT_S)

    def _save_record(self, rounds: tuple[Round, ...], **end: object) -> None:
        """Write run.json with what ranks were started with; ranks that are gone keep theirs."""
        facts, watched = self._session.facts, self._roster.round
        record = RunRecord(
            run_id=self._session.run_folder.run_id,
            command=facts.command,
            started_at=facts.started_at,
            job=facts.job,
            world_size=watched.world_size,
            nodes=(watched.host,),
            rounds=rounds,
            meeting=self.meeting,
            machine=which_machine(),
            node=self.node,
        )
        found = [rank.found for rank in watched.ranks.values()]

        def write() -> None:
            self._versions = self._versions or run_record.versions()
            known = self._records
            self._records = {
                (rank.rank, rank.pid): known.get((rank.rank, rank.pid))
                or run_record.rank_record(rank, watched.host)
                for rank in found
            }
            ranks = tuple(record for _, record in sorted(self._records.items()))
            whole = replace(record, versions=self._versions, ranks=ranks, **end)
            write_atomically(self._session.run_folder.run_file, encode_pretty(whole))

        self._writer.save(write)

    def _write_notes(self, now_ns: int) -> None:
        notes = run_record.WatchNotes(
            written_ns=now_ns,
            newest=self._writer.newest,
            published_ns=self._writer.published_ns,
            ranks=tuple(
                run_record.RankNote(
                    rank=rank.found.rank,
                    pid=rank.found.pid,
                    started_ticks=rank.found.started_ticks,
                    silent_for_s=rank.progress.silent_ns(now_ns) / NANOSECONDS,
                    idle_for_s=rank.progress.idle_ns(now_ns) / NANOSECONDS,
                    circling_for_s=rank.progress.circling_ns(now_ns) / NANOSECONDS,
                    pace=rank.pace(),
                    step_s=rank.steps.median_s,
                )
                for rank in self._roster.round.alive
            ),
        )
        try:
            write_atomically(self._session.watch_file, encode(notes))
            newest = self._writer.newest
            state = alerts.STATES.get(newest.verdict, 0) if newest is not None else 0
            reserve_file(self._session.state_file, 1)[0] = state
        except OSError as error:  # full memory costs no more than the notes
            log.once("notes", f"visitors of this job learn nothing from its sidecar ({error})")

    def _reading(
        self,
        alarm: Incident,
        now_ns: int,
        *,
        verdict: Verdict | None = None,
        exit_code: int | None = None,
    ) -> bytes:
        now_s, shown = time.time(), verdict or alarm.verdict
        stands = shown is not None and shown is alarm.verdict
        return alerts.metrics_text(
            run_id=self._writer.folder.run_id,
            standing=None if shown is None else shown.verdict,
            stall_s=alarm.stalled_s(now_ns) if stands else 0.0,
            progress={
                number: now_s - rank.progress.silent_ns(now_ns) / NANOSECONDS
                for number, rank in self._roster.round.ranks.items()
            },
            written=now_s,
            watching=verdict is None,
            exit_code=exit_code,
        )

    def _write_ledger(self, line: Run) -> None:
        folder = self._session.run_folder
        runs = folder.path.parent
        if self._ledger is not None:
            ledger = ledger_file.find_ledger(self._ledger)
        elif runs.name == RUNS_FOLDER:
            ledger = runs / ledger_file.LEDGER_FILE
        else:
            return
        try:
            ledger_file.append(ledger, replace(line, offloaded=tuple(self._offloaded)))
        except OSError as error:
            why = f"the ledger {ledger} cannot be written ({error.strerror or error})"
            log.once("ledger", f"{why}; name another: --ledger or HANGCHECK_LEDGER")


def rounds_so_far(session: Session) -> tuple[Round, ...]:
    """Return the rounds of this run that ended under an earlier sidecar."""
    try:
        read = partial(read_fact, session.run_folder.run_file, RunRecord)
        record = apart(READ_LIMIT_S, read)
    except (OSError, NoAnswerFromStorage):
        return ()
    if record is None or record.started_at != session.facts.started_at:
        return ()
    return tuple(earlier for earlier in record.rounds if earlier.ended_at is not None)
