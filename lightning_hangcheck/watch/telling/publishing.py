"""Verdicts leave the sidecar here: to a disk that may stall, and to a console nobody may read."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.ledger.stalls import Stalls
from lightning_hangcheck.observe.saving import save_page, save_verdict
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.report.verdict_text.terminal import (
    render,
    render_again,
    render_reminder,
    render_short,
)
from lightning_hangcheck.rundir.layout import prepare_run_folder
from lightning_hangcheck.session.journal_handover import Carrier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder
    from lightning_hangcheck.watch.telling.alarm import Telling


CARRY_EVERY_S = 0.5
"""How far the journals in the run folder may be behind; a listing of shared memory each time."""
SILENT_AFTER_S = 5.0
"""A busy disk takes a second or two for a write; this is worth a sentence."""
WAIT_AT_THE_END_S = 1.0
"""The same at the end of the job, which waits for it."""
JOIN_S = 0.05
ENDED = "finished"
MOST_WAITING = 100
"""Pieces of work kept while the storage is silent; a verdict of 8 ranks is about 200 KB."""


class Publisher:
    """Prints and saves verdicts, and carries the ranks' journals to the run folder.

    One thread writes the disk, so a stalled one delays nobody. This process cannot end while that
    thread waits in the kernel; whoever waits for its end waits for its word instead.

    Args:
        folder: Of the run.
        journals: Where ranks leave their lines.
        seen: Told those lines on their way, in the thread that writes.
        quiet: Print nothing but reports, what became of them, and errors.

    Attributes:
        newest: The newest verdict that was told.
        told_ns: When that was, monotonic.
        stalls: Of the run, by what was told.
        saved: Number of the verdict that was saved last; None where that failed.
    """

    def __init__(
        self,
        folder: RunFolder,
        journals: Path,
        seen: Callable[[bytes], object] = bool,
        *,
        quiet: bool = False,
    ) -> None:
        self.newest: Verdict | None = None
        self.told_ns = 0
        self.stalls = Stalls()
        self.saved: int | None = None
        self._folder = folder
        self._journals = Carrier(journals, partial(prepare_run_folder, folder), seen)
        self._quiet = quiet
        self._reported = False
        self._number: int | None = None
        self._page: Callable[[], None] | None = None
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._write, name="hangcheck-writer", daemon=True)
        self._thread.start()

    def publish(self, case: Case, verdict: Verdict, telling: Telling) -> None:
        """Tell a verdict: in the run folder with its evidence, and on the console as asked."""
        self.newest, self.told_ns = verdict, time.monotonic_ns()
        self.stalls.take(verdict, self.told_ns)
        self.save(partial(self._save_verdict, case, verdict))
        self._tell(case, verdict, telling)

    @property
    def folder(self) -> RunFolder:
        """Of the run."""
        return self._folder

    def remind(self, verdict: Verdict, stood_s: float) -> None:
        """Say that a verdict still stands, so many seconds after it was told."""
        self.say(render_reminder(verdict, stood_s, str(self._folder.path)))

    def say(self, text: str) -> None:
        """Print what is neither a verdict nor an error."""
        if not self._quiet:
            log.say(text)

    def _tell(self, case: Case, verdict: Verdict, telling: Telling) -> None:
        """A report is an alarm, and whoever was shown one is told of its end."""
        folder = str(self._folder.path)
        if telling in ("line", "named"):
            if not self._quiet or self._reported:
                below = stragglers_lines(find_stragglers(case)) if verdict.verdict == ENDED else []
                log.say("\n".join([render_short(verdict, folder), *below]))
        elif telling == "report":
            self._reported = True
            log.say(render(case, verdict, folder))
        elif telling == "aftermath":
            log.say(render_again(verdict, folder))

    def save(self, job: Callable[[], None]) -> None:
        """Have other work on the run folder done after what was asked for before."""
        if self._work.qsize() < MOST_WAITING:
            self._work.put(job)

    def watch_storage(self) -> None:
        """Say once that the run folder does not answer; to be called now and then."""
        seconds = self._silent_s()
        if seconds >= SILENT_AFTER_S:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
            log.once(
                "storage",
                f"the run folder {self._folder.path} does not answer since {since}; training goes "
                "on, journals and evidence are kept in memory; if it stays silent, name a folder "
                "on other storage: --run-dir or HANGCHECK_RUN_DIR",
            )

    def close(self, time_limit_s: float) -> None:
        """Finish writing, but wait no longer than so many seconds, and not for silent storage."""
        self._work.put(None)
        deadline = time.monotonic() + time_limit_s
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._silent_s() >= WAIT_AT_THE_END_S:
                break
            self._thread.join(JOIN_S)
        if self._thread.is_alive():
            log.once(
                "storage",
                f"the run folder {self._folder.path} does not answer; what is not in it by now is "
                "lost, verdicts are on the console; name a folder on other storage: --run-dir or "
                "HANGCHECK_RUN_DIR",
            )

    def _silent_s(self) -> float:
        """Seconds that the storage has kept the thread at one piece of work."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def _write(self) -> None:
        while True:
            try:
                job = self._work.get(timeout=CARRY_EVERY_S)
            except queue.Empty:
                job = self._journals.carry
            self._do(job or self._journals.carry)
            if self._page is not None and (job is None or self._work.empty()):
                self._write_page(self._page)
            if job is None:
                return

    def _write_page(self, page: Callable[[], None]) -> None:
        """Only once nothing else waits: `hangcheck run` ends a job when the evidence is saved."""
        self._page = None
        self._do(self._journals.carry)
        page()

    def _do(self, job: Callable[[], None]) -> None:
        self._busy_since = time.monotonic()
        try:
            job()
        except (OSError, UnpreparedRunFolder) as error:
            log.once(
                "run folder",
                f"the run folder {self._folder.path} cannot be written ({error}): "
                "verdicts are printed but not saved; free space, or name another --run-dir",
            )
        finally:
            self._busy_since = None

    def _save_verdict(self, case: Case, verdict: Verdict) -> None:
        """Number it behind those of an earlier sidecar of this run."""
        if self._number is None:
            self._number = max(self._folder.verdict_numbers(), default=0)
        self._number += 1
        self.saved = None
        save_verdict(self._folder, self._number, case, verdict)
        self.saved = self._number
        self._page = partial(save_page, self._folder, self._number, case, verdict)
