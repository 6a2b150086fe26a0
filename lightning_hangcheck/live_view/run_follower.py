"""Reads a run again and again, as `hangcheck report` does once: folder, pages, sidecar's notes."""

from __future__ import annotations

import socket
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from lightning_hangcheck.attach.recorded_session import RunningJob, RunningJobReader
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.judge.wording import exit_code_in_words, shell_code
from lightning_hangcheck.launch.run import ABORTED, ASKED_BY_US
from lightning_hangcheck.live_view.rank_now import GpuReader, ProcessMeter, ranks_now
from lightning_hangcheck.live_view.view_text import RunNow
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.report.saved_run import SavedRun, read_fact, read_saved_run
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
LEFT = "nobody records it on this machine any more, and its end was not written down"


class RunFollower:
    """Follows one run."""

    def __init__(self, folder: RunFolder, shown_folder: str) -> None:
        self._folder = folder
        self._shown_folder = shown_folder
        self._job = RunningJobReader(folder)
        self._meters: dict[int, ProcessMeter] = {}
        self._gpus = GpuReader()
        self._saved: SavedRun | None = None
        self._record: RunRecord | None = None
        self._mark: list[tuple[int, int]] = []
        self._changed_at = time.time()
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
        saved = self._read_folder(job)
        gpus, unread_gpus = self._gpus.newest
        pids = [rank.beat.pid for rank in job.ranks]
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
        if record is not None:
            # by the machine: containers may share a host's name. Older records have only that
            on_host = socket.gethostname() in record.nodes
            if record.machine == which_machine() if record.machine else on_host:
                return LEFT
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
    folders = [one.journals for one in folders_of_job(folder) if one.journals.is_dir()]
    journals = [path for one in folders for path in sorted(one.iterdir())]
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
