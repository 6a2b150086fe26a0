"""A terminal of our own: programs that lead its session, get Ctrl-C from it, and see it closed."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
from processes import PATIENCE_S, end_by_pid, is_alive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CTRL_C = b"\x03"


class Terminal:
    """A command that leads the session of a new pseudo-terminal."""

    def __init__(self, folder: Path, command: Sequence[str], **environment: str) -> None:
        self.shown = ""
        self.pid, self._master = os.forkpty()
        if self.pid == 0:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run below nohup ignores it
            os.chdir(folder)
            os.execvpe(  # noqa: S606 - a terminal's first program has no shell above it
                command[0], list(command), {**os.environ, **environment}
            )
        self._everyone: dict[int, psutil.Process] = {}

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def close(self) -> None:
        """Close its window."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def until_shown(self, text: str, seconds: float = PATIENCE_S) -> None:
        """Read until a text was printed."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} was not printed: {self.shown}")

    def until_ended(self, seconds: float = PATIENCE_S) -> int:
        """Read until it has ended and nobody can print; returns its exit code as a shell does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read(min(deadline, time.monotonic() + 0.05))
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read(deadline):
                    pass  # what it and others printed at the end
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        raise AssertionError(f"it does not end: {self.shown}")

    def below(self) -> list[psutil.Process]:
        """Return the processes below the command."""
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.pid).children(recursive=True):
                self._everyone[process.pid] = process
        return [process for process in self._everyone.values() if is_alive(process)]

    def end(self) -> None:
        """End everybody."""
        below = self.below()
        self.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        end_by_pid(below)

    def _read(self, deadline: float) -> bool:
        """Read what is there; False when the time is up, or when nobody can print any more."""
        if self._master < 0:
            time.sleep(0.01)
            return False
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 65_536) if ready else b""
        except OSError:  # EIO: the last process has closed it
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
