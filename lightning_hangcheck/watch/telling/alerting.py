"""The sidecar's hand in alerts: starts a messenger for each hang, and never waits for one."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.alerts.asked_for import AT_THE_END_S, AlertsAskedFor, Errand, HangNews
from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.machine.room import require_room
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.report.verdict_text.terminal import render_line
from lightning_hangcheck.session.experiments import noted_experiment

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.session.session import Session

MESSENGER = "lightning_hangcheck.alerts.messenger"
TASKS = 8
"""Threads and processes of a messenger: itself, one for each address, a shell and what it runs."""
LAST_GRACE_S = 1.0
LONGEST_TEXT = 2000
"""Characters; services cut what is longer, and a summary is one sentence."""


class Alerting:
    """What was asked for, and the messengers under way.

    Args:
        session: Of the job: in it ranks note their runs of wandb.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked_for = AlertsAskedFor()
        self._under_way: list[subprocess.Popen[bytes]] = []

    def take(self, asked_for: AlertsAskedFor) -> None:
        """Learn what is to be told; `hangcheck run` says it at the start."""
        self._asked_for = asked_for

    def tell(self, verdict: Verdict, run_dir: str, number: int | None) -> None:
        """Have a messenger tell of a hang.

        Args:
            verdict: That a hang is proven.
            run_dir: The run folder.
            number: Of the verdict in it; None where it is not saved yet.
        """
        self._under_way = [one for one in self._under_way if one.poll() is None]
        if not self._asked_for.any:
            return
        news = _news(verdict, run_dir, number)
        experiment = noted_experiment(self._session) if self._asked_for.wandb else None
        try:
            self._start(encode(Errand(self._asked_for, news, experiment)))
        except (OSError, RuntimeError) as error:  # no process, or no thread
            log.once(
                "messenger", f"nobody was told of the hang: no process can be started ({error})"
            )

    def close(self) -> None:
        """Wait for those under way, within a limit; then end them and say so."""
        deadline = time.monotonic() + AT_THE_END_S
        for messenger in self._under_way:
            with suppress(subprocess.TimeoutExpired):
                messenger.wait(max(0.0, deadline - time.monotonic()))
        late = [one for one in self._under_way if one.poll() is None]
        for messenger in late:
            log.once(
                "messenger late",
                f"what was to be done on the hang took {AT_THE_END_S:g} s longer than the job, "
                "and is ended",
            )
            messenger.terminate()
        for messenger in late:
            with suppress(subprocess.TimeoutExpired):
                messenger.wait(LAST_GRACE_S)
            messenger.kill()

    def _start(self, errand: bytes) -> None:
        require_room(TASKS)
        messenger = subprocess.Popen(
            own_command(MESSENGER),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment_of_module(),
            start_new_session=True,
        )
        self._under_way.append(messenger)
        # an environment may be larger than a pipe holds, and the messenger has yet to start
        threading.Thread(target=_hand_over, args=(messenger, errand), daemon=True).start()


def _hand_over(messenger: subprocess.Popen[bytes], errand: bytes) -> None:
    if messenger.stdin is not None:
        with suppress(BrokenPipeError), messenger.stdin as pipe:
            pipe.write(errand)


def _news(verdict: Verdict, run_dir: str, number: int | None) -> HangNews:
    where = run_dir.rpartition("/")[2]
    return HangNews(
        kind=verdict.verdict,
        cause=verdict.cause or "unknown",
        culprits=verdict.culprits,
        title=f"{verdict.verdict.upper()} {verdict.cause or ''} in {where}".replace("  ", " "),
        text=render_line(verdict)[:LONGEST_TEXT],
        run_dir=run_dir,
        number=number,
    )
