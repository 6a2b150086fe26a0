"""Finishing a wandb run within a time limit, whether the user finishes it or the interpreter exits.

wandb waits for its service process, and that for the server. Asked to, the service gives up by
itself and writes what is left to the disk (wandb's ``finish_timeout``). Where it does not even do
that, a thread of ours ends it, and wandb's wait with it. That thread starts with the run: from
Python 3.12 on, none can be started at exit.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from lightning_hangcheck import log
from lightning_hangcheck.hooks.wait_limit import notice_after
from lightning_hangcheck.hooks.wandb.service import abandon, end_services
from lightning_hangcheck.machine.own_thread import start_thread
from lightning_hangcheck.machine.room import NoRoom
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

    from lightning_hangcheck.look.proc import ProcessRef

GIVES_UP_EARLIER = 2.0  # seconds that wandb gets less than we wait: it ends in order, we by force


class _Stage(Struct, frozen=True):
    """A wait for wandb's service: when it begins, when it is over, and whether we cut it off."""

    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    cut: threading.Event = field(default_factory=threading.Event)


def wandb_patience(limit: float) -> float:
    """Seconds after which wandb should give up, so that it does before we do."""
    return max(limit - GIVES_UP_EARLIER, limit / 2)


class RunFinish:
    """Bounds ``run.finish()``, and what wandb does at exit for a run that was not finished.

    Nothing is raised for being late: training is done, and what was not uploaded is on the disk.

    Args:
        run: Just created; its ``finish`` is replaced by one that returns in time.
        limit: Seconds for finishing it, upload included, and for closing wandb at exit.
        service: Its service processes, as far as this process started them.
    """

    def __init__(self, run: Run, limit: float, service: frozenset[ProcessRef]) -> None:
        self._pid = os.getpid()
        self._limit = limit
        self._service = service
        self._folder = Path(run.dir).parent.absolute()
        self._destination = "offline" if run.offline else f"server {run.settings.base_url}"
        self._plain_finish = run.finish
        self._finishing, self._closing = _Stage(), _Stage()
        run.finish = self.finish
        try:
            start_thread(self._watch, "hangcheck-wandb-ending")
        except NoRoom as refusal:
            log.once("wandb-ending", f"wandb's end has only wandb's own limit: {refusal}")
        atexit.register(self._at_exit)

    def finish(self, exit_code: int | None = None) -> None:
        """Finish the run as wandb does, but return in time.

        Args:
            exit_code: Of the program, as wandb wants to know it.

        Raises:
            Exception: What wandb raises for another reason than that its service was ended.
        """
        stage = self._finishing
        if os.getpid() != self._pid or stage.over.is_set():
            self._plain_finish(exit_code)
            return
        stage.begun.set()
        try:
            with self._shown():
                self._plain_finish(exit_code)
        except Exception:
            if not stage.cut.is_set():
                raise
        finally:
            stage.over.set()
        if stage.cut.is_set():
            abandon(frozenset())  # so that the next run gets a service that lives

    def _shown(self) -> Section:
        """Tell the sidecar that this wait is going to end."""
        return Section(current(), "wandb run finish", spoken=False, goes_on_after_s=self._limit)

    def _at_exit(self) -> None:
        """Runs before wandb's own hook, which was registered earlier and waits without a limit."""
        import wandb

        if os.getpid() != self._pid:
            return
        if not self._finishing.over.is_set():
            self._shown().__enter__()  # wandb's own hook waits next, and tells nobody of its end
            self._finishing.begun.set()
        elif wandb.run is None:  # else wandb still uploads another run, which is not ours to end
            self._closing.begun.set()

    def _watch(self) -> None:
        stage = self._finishing
        stage.begun.wait()
        if not self._is_over_in_time(stage):
            stage.cut.set()
            end_services(self._service)
            self._say(
                "wandb's service did not react and was ended; what it had written is in "
                f"{self._folder}"
            )
            stage.over.wait()
        self._closing.begun.wait()
        if not self._closing.over.wait(self._limit):
            end_services(self._service)

    def _is_over_in_time(self, stage: _Stage) -> bool:
        first, last = notice_after(self._limit), wandb_patience(self._limit)
        if stage.over.wait(first):
            return True
        self._say(
            f"wandb is waited for, to finish its run ({self._destination}); it has "
            f"{self._limit:g} s for that"
        )
        if stage.over.wait(last - first):
            return True
        self._say(
            f"wandb did not finish its run within {last:g} s and is not waited for any longer; the "
            f"data is in {self._folder}; upload it later: wandb sync {self._folder}"
        )
        return stage.over.wait(self._limit - last)

    def _say(self, sentence: str) -> None:
        log.once(sentence, sentence)
