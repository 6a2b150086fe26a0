"""A file that is written anew again and again, on storage that may stall."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.files.atomic import FOR_ALL, write_atomically

if TYPE_CHECKING:
    from pathlib import Path

SILENT_AFTER_S = 15.0
"""Three writings were due by then."""


class NewestOnly:
    """Writes the newest that it was given, by a thread of its own; what is older is left out.

    What cannot be written is said once, and never waited for.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._newest: bytes | None = None
        self._closing = False
        self._busy_since: float | None = None
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hangcheck-metrics", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Have it written as soon as the storage has taken what came before."""
        with self._news:
            self._newest = data
            self._news.notify()

    def complain(self) -> None:
        """Say once that the storage does not answer; to be called now and then."""
        since = self._busy_since
        if since is not None and time.monotonic() - since >= SILENT_AFTER_S:
            self._say(f"has not answered for {SILENT_AFTER_S:g} s")

    def close(self, time_limit_s: float) -> None:
        """Write what is left, but wait no longer than so many seconds."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(time_limit_s)
        if self._thread.is_alive():
            self._say("does not answer; the end of the run is not in it")

    def _run(self) -> None:
        while True:
            with self._news:
                while self._newest is None and not self._closing:
                    self._news.wait()
                data, self._newest = self._newest, None
            if data is None:
                return
            self._write(data)

    def _write(self, data: bytes) -> None:
        self._busy_since = time.monotonic()
        try:
            write_atomically(self._file, data, FOR_ALL)
        except OSError as error:
            self._say(f"cannot be written ({error.strerror})")
        finally:
            self._busy_since = None

    def _say(self, trouble: str) -> None:
        log.once("metrics", f"the metrics file {self._file} {trouble}; watching goes on")
