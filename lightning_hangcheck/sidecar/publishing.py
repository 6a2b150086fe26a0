"""Verdicts leave the sidecar here: first to the console, then to a disk that may stall."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.report.stacks_text import render_stacks
from lightning_hangcheck.report.terminal import render, render_again, render_line
from lightning_hangcheck.rundir.atomic import make_private_folder, write_atomically
from lightning_hangcheck.rundir.saved_evidence import CASE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder
    from lightning_hangcheck.sidecar.alarm import Telling


class Publisher:
    """Prints and saves verdicts. A thread writes the disk, so a stalled one delays nobody.

    Attributes:
        newest: The newest verdict that was told.
        told_ns: When that was, monotonic.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.newest: Verdict | None = None
        self.told_ns = 0
        self._folder = folder
        self._number = max(folder.verdict_numbers(), default=0)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="hangcheck-writer", daemon=True)
        self._thread.start()

    def publish(self, case: Case, verdict: Verdict, telling: Telling) -> None:
        """Tell a verdict: on the console as asked, and in the run folder with its evidence."""
        self.newest, self.told_ns = verdict, time.monotonic_ns()
        if telling == "line":
            _print(render_line(verdict))
        elif telling == "report":
            _print(render(case, verdict, str(self._folder.path)))
        elif telling == "aftermath":
            _print(render_again(verdict, str(self._folder.path)))
        self._number += 1
        number = self._number
        self._work.put(lambda: save_verdict(self._folder, number, case, verdict))

    def save(self, job: Callable[[], None]) -> None:
        """Have other work on the run folder done after what was asked for before."""
        self._work.put(job)

    def close(self, time_limit_s: float) -> None:
        """Finish writing, but wait no longer than so many seconds for a stalled disk."""
        self._work.put(None)
        self._thread.join(time_limit_s)
        if self._thread.is_alive():
            log.once("disk", f"the run folder {self._folder.path} does not answer; giving it up")

    def _write(self) -> None:
        while (job := self._work.get()) is not None:
            try:
                job()
            except (OSError, UnpreparedRunFolder) as error:
                log.once(
                    "run folder",
                    f"the run folder {self._folder.path} cannot be written ({error}): "
                    "verdicts are printed but not saved; free space, or name another --run-dir",
                )


def save_verdict(folder: RunFolder, number: int, case: Case, verdict: Verdict) -> None:
    """Save a verdict with the evidence that it rests on; the evidence comes first.

    Args:
        folder: Of the run.
        number: Of the verdict, from 1.
        case: What was judged.
        verdict: What it came to.

    Raises:
        OSError: The folder is gone, full or not ours.
    """
    evidence = folder.evidence(number)
    make_private_folder(evidence)
    write_atomically(evidence / CASE_FILE, encode_pretty(case))
    write_atomically(evidence / "stacks.txt", render_stacks(case).encode())
    make_private_folder(folder.numbered_verdict(number).parent)
    write_atomically(folder.numbered_verdict(number), encode_pretty(verdict))
    write_atomically(folder.verdict_file, encode_pretty(verdict))


def _print(text: str) -> None:
    """One write a verdict, so that no rank's line falls into it; a closed stderr is ignored."""
    data = f"{text.rstrip()}\n".encode(errors="replace")
    try:
        os.write(2, data)
    except OSError:
        return
