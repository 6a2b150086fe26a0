"""`hangcheck run --live`: the launcher's end of the view below the job's own output.

The job keeps the terminal as its own: what it prints goes there unchanged, and the terminal scrolls
it above the region (`text/status_region`). The region is drawn by a process of its own, in which
nothing can go wrong for the job. Before this process stops on Ctrl-Z the region is taken away, as
the shell knows nothing of it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.machine.room import require_room
from lightning_hangcheck.text.status_region import GIVEN_UP
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session

MODULE = "lightning_hangcheck.live_view.in_run"
TERMINAL = 2
TASKS = 4
"""Threads of the view, and the process that it asks GPUs with."""
WORD_LIMIT_S = 0.5
"""For the view's word that it is hidden; a terminal held with Ctrl-S gives none."""
HIDE, SHOW = b"h", b"s"


def why_not() -> str:
    """Say why nothing can be drawn below the job's output; empty where it can."""
    if not os.isatty(TERMINAL):
        return "standard error is no terminal"
    if os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
        return "this terminal cannot move its cursor (TERM)"
    if (sys.stderr.encoding or "").lower().replace("-", "") != "utf8":
        return "this terminal shows no UTF-8 (LANG, LC_ALL)"
    return ""


class LiveRegion:
    """The process that draws, as long as it lives; it is not started again."""

    def __init__(self, session: Session) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._shown = False
        shown_folder = os.path.relpath(session.run_folder.path)
        colours = "plain" if os.environ.get("NO_COLOR") else "colour"
        try:
            require_room(TASKS)
            self._process = subprocess.Popen(
                own_command(MODULE, str(session.path), shown_folder, colours),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment_of_module(),
                start_new_session=True,
            )
        except OSError as error:
            log.once("live", f"--live: the view cannot be started ({error}); the run goes on")

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Its process, if it could be started."""
        return [] if self._process is None else [self._process]

    def keep(self) -> None:
        """Show it while this job has the terminal, and not while it runs in the background."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self._give_up(self._process)
            return
        wanted = _in_foreground()
        if wanted and not self._shown:
            self._shown = self._tell(SHOW)
        elif not wanted and self._shown:
            self.hide()

    def hide(self) -> None:
        """Take it from the terminal, and wait a moment until that is done."""
        if self._process is None or not self._shown:
            return
        self._shown = False
        if self._tell(HIDE) and self._process.stdout is not None:
            ready, _, _ = select.select([self._process.stdout], [], [], WORD_LIMIT_S)
            if ready:
                os.read(self._process.stdout.fileno(), 64)

    def stop_with_job(self) -> None:
        """Stop this process, as Ctrl-Z does without us; returns when it was told to go on."""
        self.hide()
        # stopped by the very signal, so that the kernel leaves out whom no shell could continue
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)  # for this thread alone
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])

    def end(self) -> None:
        """Take it away for good; one that does not answer is killed, and its region taken away."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(WORD_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(WORD_LIMIT_S)
        self._give_up(process)

    def _give_up(self, process: subprocess.Popen[bytes]) -> None:
        """Put in order what a process that was killed has left, if the terminal takes it at all."""
        if process.returncode != 0:
            if process.returncode is not None and process.returncode < 0:
                log.once("live ended", "--live: the view was killed; the run goes on without it")
            with suppress(NoAnswer, OSError):
                within(WORD_LIMIT_S, partial(os.write, TERMINAL, GIVEN_UP.encode()))
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process, self._shown = None, False

    def _tell(self, word: bytes) -> bool:
        """Whether the other side is there to hear it."""
        try:
            if self._process is not None and self._process.stdin is not None:
                os.write(self._process.stdin.fileno(), word)
                return True
        except OSError:
            pass
        return False


def _in_foreground() -> bool:
    """Whether the shell has given us the terminal; true where it is not ours to be asked."""
    try:
        return os.tcgetpgrp(TERMINAL) == os.getpgrp()
    except OSError:
        return True
