"""The files that tell of a run while it goes on and when it ends, composed from its ranks.

    run.json      who its ranks are, and its rounds: when a rank appears, and at the end
    watch.json    what is known of each rank now, for visitors; once a second, in shared memory
    ledger.jsonl  one line on what the run came to
    metrics file  of ``--prometheus``, for node-exporter's textfile collector

What touches the disk, or reads an environment, is done by the thread that writes.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.alerts import metrics_text
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.safe import read_fact, write_atomically
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import Run
from lightning_hangcheck.ledger.spending import longest_first
from lightning_hangcheck.look.gpu import gpu_names
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.model.codec import encode, encode_pretty
from lightning_hangcheck.model.run import NodeClock, RankPlace, RankRecord, Round, RunRecord
from lightning_hangcheck.observe.run_record import RankNote, WatchNotes, rank_record, versions
from lightning_hangcheck.rundir import RUNS_FOLDER, RunFolder, read_early
from lightning_hangcheck.text.shown import NANOSECONDS, utc_now
from lightning_hangcheck.watch.writer import NewestOnly, Writer

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Phase
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.alarm import Alarm
    from lightning_hangcheck.watch.roster import Roster

READ_LIMIT_S = 2.0
"""One small file; storage that is slower than this has its rounds told from here on."""
NOTES_EVERY_S, METRICS_EVERY_S = 1.0, 5.0
"""A note of eight ranks costs the sidecar 0.1 ms; `hangcheck attach` looks for two seconds.
Prometheus asks every 15 s by habit. What is told is written at once."""
METRICS_END_LIMIT_S = 1.0
GPU_LIMIT_S = 3.0
"""Asked while the run begins, by the thread that writes; a driver that wakes 8 GPUs takes 1 s."""


class RunFiles:
    """Keeps them; ``meeting``, ``node`` and ``clocks`` as in `RunRecord`."""

    def __init__(
        self, session: Session, settings: Settings, writer: Writer, roster: Roster
    ) -> None:
        self.meeting = ""
        self.node: int | None = None
        self.clocks: tuple[NodeClock, ...] = ()
        self._session = session
        self._writer = writer
        self._roster = roster
        self._ledger = settings.ledger
        self._began_ns = time.monotonic_ns()
        self._gpus: tuple[str, ...] = ()
        self._records: dict[tuple[int, int], RankRecord] = {}
        self._versions: dict[str, str] = {}
        self._recorded: object = None
        self._told_ns = self._noted_ns = self._measured_ns = 0
        metrics = settings.prometheus
        self._metrics = None if metrics is None else NewestOnly(Path(metrics).absolute())

        def learn_gpus() -> None:
            self._gpus = gpu_names(GPU_LIMIT_S)

        writer.save(learn_gpus)

    def keep(self, alarm: Alarm, earlier: tuple[Round, ...], now_ns: int) -> None:
        """Write what is due."""
        # run.json: if a rank appeared or changed its process since, or a round ended
        watched = self._roster.round
        pids = [(rank, one.found.pid) for rank, one in sorted(watched.ranks.items())]
        where = (self.meeting, self.node, self.clocks)
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
        news = self._writer.told_ns != self._told_ns
        self._told_ns = self._writer.told_ns
        if news or now_ns - self._noted_ns >= NOTES_EVERY_S * NANOSECONDS:
            self._noted_ns = now_ns
            self._write_notes(now_ns)
        measured = now_ns - self._measured_ns < METRICS_EVERY_S * NANOSECONDS
        if self._metrics is not None and (news or not measured):
            self._measured_ns = now_ns
            self._metrics.write(self._reading(alarm, now_ns))

    def end(
        self,
        alarm: Alarm,
        verdict: Verdict,
        rounds: tuple[Round, ...],
        exit_code: int | None,
        ended_by: str,
    ) -> None:
        """Write what the run came to."""
        watched, now_ns, ended_at = self._roster.round, time.monotonic_ns(), utc_now()
        self._save_record(rounds, ended_at=ended_at, exit_code=exit_code, ended_by=ended_by)
        seconds: dict[Phase, float] = {}
        for rank in watched.ranks.values():
            for phase in rank.spending.spent().phases:
                seconds[phase.phase] = seconds.get(phase.phase, 0.0) + phase.seconds
        facts = self._session.facts
        line = Run(
            id=os.urandom(4).hex(),
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
        """Have run.json written with what ranks were started with; who is gone keeps that."""
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
            clocks=self.clocks,
        )
        found = [rank.found for rank in watched.ranks.values()]

        def write() -> None:
            self._versions = self._versions or versions()
            known = self._records
            self._records = {
                (rank.rank, rank.pid): known.get((rank.rank, rank.pid))
                or rank_record(rank, watched.host)
                for rank in found
            }
            ranks = tuple(one for _, one in sorted(self._records.items()))
            whole = replace(record, versions=self._versions, ranks=ranks, **end)
            write_atomically(self._session.run_folder.run_file, encode_pretty(whole))

        self._writer.save(write)

    def _write_notes(self, now_ns: int) -> None:
        notes = WatchNotes(
            written_ns=now_ns,
            newest=self._writer.newest,
            told_ns=self._writer.told_ns,
            ranks=tuple(
                RankNote(
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
        except OSError as error:  # memory that is full costs no more than that
            log.once("notes", f"visitors of this job learn nothing from its sidecar ({error})")

    def _reading(
        self,
        alarm: Alarm,
        now_ns: int,
        *,
        verdict: Verdict | None = None,
        exit_code: int | None = None,
    ) -> bytes:
        """As things are now, or as the run ended with a verdict."""
        now_s, told = time.time(), verdict or alarm.standing
        stands = told is not None and told is alarm.standing
        return metrics_text(
            run_id=self._writer.folder.run_id,
            standing=None if told is None else told.verdict,
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
        """Append to the ledger that was named, else to that of the runs."""
        folder = self._session.run_folder
        runs = folder.path.parent
        if self._ledger is not None:
            ledger = ledger_file.find_ledger(self._ledger)
        elif runs.name == RUNS_FOLDER:
            ledger = runs / ledger_file.LEDGER_FILE
        else:
            return
        try:
            ledger_file.append(ledger, replace(line, offloaded=offloaded(folder)))
        except OSError as error:
            log.once("ledger", f"the ledger {ledger} cannot be written ({error}): HANGCHECK_LEDGER")


def rounds_so_far(session: Session) -> tuple[Round, ...]:
    """Return the rounds of this run that a sidecar before us saw to their end."""
    try:
        read = partial(read_fact, session.run_folder.run_file, RunRecord)
        record = apart(READ_LIMIT_S, read)
    except (OSError, NoAnswerFromStorage):
        return ()
    if record is None or record.started_at != session.facts.started_at:
        return ()
    return tuple(earlier for earlier in record.rounds if earlier.ended_at is not None)


def offloaded(folder: RunFolder) -> tuple[str, ...]:
    """Return what the ranks' journals tell of offloaded models; touches the disk."""
    found: dict[str, None] = {}
    for journal in sorted(folder.journals.glob("*.jsonl")):
        told = (str(entry.get("what", "")) for entry in read_early(journal, "offloaded"))
        found.update(dict.fromkeys(told))
    return tuple(found)
