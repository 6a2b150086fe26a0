"""Reads a run again and again, as `hangcheck report` does once: folder, pages, sidecar's notes."""

from __future__ import annotations

import socket
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.attach.recorded_session import RunningJob, RunningJobReader
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.judge.wording import exit_code_in_words, shell_code
from lightning_hangcheck.launch.run import ABORTED, ASKED_BY_US
from lightning_hangcheck.live_view.rank_now import GpuReader, RunSources, UseMeter, ranks_now
from lightning_hangcheck.live_view.view_text import RunNow
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.report.saved_run import SavedRun, read_record, read_saved_run
from lightning_hangcheck.rundir import folders_of_job
from lightning_hangcheck.text.shown import NANOSECONDS, read_utc, seconds_in_words, several
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from lightning_hangcheck.rundir import RunFolder

STAT_LIMIT_S = 1.0
"""For the times of a few files: storage that takes longer is asked again at the next look."""
FOLDER_SHARE = 100
"""A folder that takes 10 ms to read is read once a second at most: 1 % of a core."""
GONE_AFTER_S = 3.0
"""At a run's start its watcher has yet to come, and at its end ranks, watcher and session go one
after the other."""
QUIET_FOLDER_S = 600.0
"""A run of another machine is only its folder here; one in which nothing is new for so long ends
the view, which in a script would else never end."""
ELSEWHERE = "followed by its folder: no process of it is on this machine"
LEFT = "nobody records it on this machine any more, and its end was not written down"


class SavedParts(Struct, frozen=True, kw_only=True):
    """What the run folder told last.

    Attributes:
        mark: Times and sizes of what was read, to see what is new.
        changed_at: When something in it changed last, seconds since 1970.
    """

    saved: SavedRun
    record: RunRecord | None
    mark: tuple[tuple[int, int], ...]
    changed_at: float


class RunFollower:
    """Follows one run.

    Args:
        folder: Of the run.
        shown_folder: As the reader should type it.
    """

    def __init__(self, folder: RunFolder, shown_folder: str) -> None:
        self._folder = folder
        self._shown_folder = shown_folder
        self._job = RunningJobReader(folder)
        self._meter = UseMeter()
        self._gpus = GpuReader()
        self._parts: SavedParts | None = None
        self._read_again_at = 0.0
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
        parts = self._folder_parts(job)
        gpus, unread_gpus = self._gpus.newest
        self._gpus.ask([one.beat.pid for one in job.ranks])
        over = self._over(job, parts)
        verdict = job.newest or parts.saved.verdict
        sources = RunSources(
            running=job.ranks,
            verdict=verdict,
            record=parts.record,
            journals=parts.saved.journals,
            over=bool(over),
            here=job.here,
            used=self._meter.measure(job, gpus),
        )
        record, saved = parts.record, parts.saved
        gaps = [f"{gap.what}: {gap.reason}" for gap in saved.gaps]
        gaps = gaps or ([saved.refused] if saved.refused else [])
        return RunNow(
            shown_folder=self._shown_folder,
            at=datetime.now(timezone.utc),
            status=self._status(job, record),
            command="" if record is None else record.command,
            over=over,
            verdict=verdict,
            ranks=ranks_now(sources),
            gaps=(*gaps, *unread_gpus),
        )

    def close(self) -> None:
        """Let go of the run's pages."""
        self._job.close()

    def _folder_parts(self, job: RunningJob) -> SavedParts:
        """Read the folder where it changed since, and not too often but at the end of the run."""
        ending = self._alive_at is not None and not (job.watched or job.ranks)
        if self._parts is not None and not ending and time.monotonic() < self._read_again_at:
            return self._parts
        began_s = time.process_time()
        try:
            mark, changed_at = within(STAT_LIMIT_S, lambda: _mark(self._folder))
            if self._parts is None or mark != self._parts.mark:
                self._parts = SavedParts(
                    saved=read_saved_run(self._folder),
                    record=within(STAT_LIMIT_S, lambda: read_record(self._folder)),
                    mark=mark,
                    changed_at=changed_at,
                )
        except (NoAnswer, OSError, UnreadableRun) as error:
            if self._parts is None and not job.here:
                if isinstance(error, UnreadableRun):
                    raise
                raise UnreadableRun(
                    f"{self._folder.path} cannot be read ({error})",
                    "name a run folder that you may read",
                ) from error
            self._parts = self._parts or SavedParts(
                saved=SavedRun(refused=str(error)), record=None, mark=(), changed_at=time.time()
            )
        spent_s = time.process_time() - began_s
        self._read_again_at = time.monotonic() + FOLDER_SHARE * spent_s
        return self._parts

    def _over(self, job: RunningJob, parts: SavedParts) -> str:
        """Why nothing more will come; empty while something may."""
        record = parts.record
        if record is not None and record.ended_at is not None:
            return _ended(record, record.ended_at)
        if self._alive_at is not None:
            gone_s = time.monotonic() - self._alive_at
            return LEFT if gone_s >= GONE_AFTER_S else ""
        if record is not None:
            # by the machine: containers may share a host's name. Older records have only that
            on_host = socket.gethostname() in record.nodes
            if record.machine == which_machine() if record.machine else on_host:
                return LEFT
        quiet_s = time.time() - parts.changed_at
        if quiet_s >= QUIET_FOLDER_S:
            return f"nothing new in its folder for {seconds_in_words(round(quiet_s))}"
        return ""

    def _status(self, job: RunningJob, record: RunRecord | None) -> str:
        if not job.here:
            return ELSEWHERE
        world, here = record.world_size if record is not None else 0, len(job.ranks)
        count = f"{here} of {several(world, 'rank')}" if world else several(here, "rank")
        gone = "its watcher is gone" if self._watched else "no watcher is there"
        unwatched = "" if job.watched else f"; {gone}, so nobody judges it"
        return f"{count} {'runs' if here == 1 else 'run'} here{unwatched}"


def _mark(folder: RunFolder) -> tuple[tuple[tuple[int, int], ...], float]:
    """Times and sizes of the files that are read; journals count, as they tell without a verdict.

    Returns:
        They, and when the newest of them changed.
    """
    folders = [one.journals for one in folders_of_job(folder) if one.journals.is_dir()]
    journals = [path for one in folders for path in sorted(one.iterdir())]
    files = [folder.verdict_file, folder.run_file, *journals]
    found = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists()]
    newest = max((changed_ns for changed_ns, _ in found), default=0)
    return tuple(found), (newest or folder.path.stat().st_mtime_ns) / NANOSECONDS


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
