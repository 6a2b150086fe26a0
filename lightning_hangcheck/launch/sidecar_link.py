"""The launcher's end of the line to its sidecar: starts, reads and replaces it when it dies."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.alerts.asked_for import AT_THE_END_S, AlertsAskedFor
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.rundir.layout import prepare_run_folder
from lightning_hangcheck.session.journal_handover import Carrier
from lightning_hangcheck.watch.messages import (
    CommandEnded,
    EndAsked,
    HangProven,
    Inbox,
    Message,
    send,
)
from lightning_hangcheck.watch.starting import start_linked_sidecar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings

MOST_STARTS = 4
END_LIMIT_S = 0.5
"""For what takes milliseconds unless storage stalls."""
CONCLUSION_LIMIT_S = 15.0
"""Time for the last verdict: one look at all ranks and a disk that may be slow."""


class SidecarLink:
    """One sidecar at a time, with the pipes to it."""

    def __init__(self, session: Session, settings: Settings, alerts: AlertsAskedFor) -> None:
        self._session = session
        self._settings = settings
        self._alerts = alerts
        self._starts = 0
        self._end_asked: EndAsked | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox: Inbox | None = None
        self._start()

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The sidecar's process, if it could be started."""
        return [self._process] if self._process is not None else []

    @property
    def is_end_asked(self) -> bool:
        """Whether somebody has asked the job to end."""
        return self._end_asked is not None

    def keep_alive(self) -> None:
        """Start a new sidecar when the old one died, a few times, and say so each time."""
        if self._process is None or self._process.poll() is None:
            return
        pid, code = self._process.pid, self._process.returncode
        self._process = None
        if self._starts >= MOST_STARTS:
            log.once("sidecar given up", "the sidecar keeps dying; training goes on unwatched")
            return
        log.once(
            f"sidecar {pid}",
            f"the sidecar (pid {pid}) ended with code {code}; training goes on, a new one starts",
        )
        self._start()

    def hang_proven(self) -> HangProven | None:
        """Return the newest hang that the sidecar has called proven since last asked."""
        proven = None
        while self._inbox is not None and (message := self._inbox.next()) is not None:
            proven = message if isinstance(message, HangProven) else proven
        return proven

    def end_asked(self, by: str) -> None:
        """Tell the sidecar that the job shall end.

        Args:
            by: As in `AskedEnd`.
        """
        self._end_asked = self._end_asked or EndAsked(by)
        self._tell(EndAsked(by))

    def close(self, pid: int, exit_code: int, left_running: Sequence[int]) -> None:
        """Tell the sidecar how the command ended, and wait for its last verdict, not for ever.

        It has told all once it lets go of its pipe. Its own end may take longer: storage that
        stalls keeps a process that writes to it, SIGKILL or not.
        """
        process = self._process
        if process is None or self._inbox is None:
            self._carry_journals()
            return
        self._tell(CommandEnded(pid, exit_code, tuple(left_running)))
        limit_s = CONCLUSION_LIMIT_S + (AT_THE_END_S if self._alerts.any else 0.0)
        if not self._inbox.wait_for_end(limit_s):
            log.once("conclusion", "the sidecar does not come to an end; its last verdict is lost")
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)

    def _carry_journals(self) -> None:
        """Where the last sidecar is lost, what ranks left would be lost too."""
        carrier = Carrier(
            self._session.journals, partial(prepare_run_folder, self._session.run_folder)
        )
        try:
            apart(END_LIMIT_S, carrier.carry)
        except (NoAnswerFromStorage, UnpreparedRunFolder, OSError) as error:
            log.once("journals", f"the last lines of the journals are lost: {error}")

    def _start(self) -> None:
        self._starts += 1
        try:
            self._process = start_linked_sidecar(self._session, self._settings)
        except OSError as error:
            log.once("sidecar", f"no sidecar can be started ({error}); training goes on unwatched")
            return
        if self._process.stdout is not None:
            self._inbox = Inbox(self._process.stdout)
        if self._alerts.any:
            self._tell(self._alerts)
        if self._end_asked is not None:
            self._tell(self._end_asked)

    def _tell(self, message: Message) -> None:
        if self._process is not None and self._process.stdin is not None:
            send(self._process.stdin, message)
