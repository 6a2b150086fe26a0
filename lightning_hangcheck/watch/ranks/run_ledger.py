"""The ledger's line of a watched run, written when it ends."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.ledger import book
from lightning_hangcheck.ledger.records import Run
from lightning_hangcheck.ledger.spending import longest_first
from lightning_hangcheck.probes.gpu.use import gpu_names
from lightning_hangcheck.rundir.journal_reader import read_early
from lightning_hangcheck.rundir.layout import RUNS_FOLDER
from lightning_hangcheck.text.moments import NANOSECONDS, utc_now

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.ledger.stalls import Stall
    from lightning_hangcheck.model.case import PhaseTime
    from lightning_hangcheck.model.naming.slugs import Phase
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.ranks.roster import Roster

GPU_LIMIT_S = 3.0
"""Asked while the run begins, by the thread that writes; a driver that wakes 8 GPUs takes 1 s."""


class RunLedger:
    """Keeps what one run comes to. Its methods that touch the disk are for the writing thread."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._named = settings.ledger
        self._began_ns = time.monotonic_ns()
        self._gpus: tuple[str, ...] = ()

    def look_around(self) -> None:
        """Learn which GPUs are paid for."""
        self._gpus = gpu_names(GPU_LIMIT_S)

    def line(
        self, roster: Roster, verdict: Verdict, exit_code: int | None, stalls: tuple[Stall, ...]
    ) -> Run:
        """Compose the line of the run, which has ended.

        Args:
            roster: Of its last round.
            verdict: What its end came to.
            exit_code: Of the command, where its launcher says it.
            stalls: Of the whole run.
        """
        facts = self._session.facts
        return Run(
            id=os.urandom(4).hex(),
            at=utc_now(),
            run_id=self._session.run_folder.run_id,
            command=facts.command,
            started_at=facts.started_at,
            duration_s=round((time.monotonic_ns() - self._began_ns) / NANOSECONDS, 3),
            ranks=len(roster.ranks),
            host=roster.host,
            gpus=self._gpus,
            verdict=verdict.verdict,
            exit_code=exit_code,
            spent=_spent(roster),
            stalls=stalls,
        )

    def write(self, line: Run) -> None:
        """Append it; a ledger that cannot be written is said, and takes nothing from the run."""
        ledger = self._ledger()
        if ledger is None:
            return
        try:
            told = offloaded(self._session.run_folder)
            book.append(ledger, replace(line, offloaded=told))
        except OSError as error:
            log.once("ledger", f"the ledger {ledger} cannot be written ({error}): HANGCHECK_LEDGER")

    def _ledger(self) -> Path | None:
        """The one that was named, else that of the runs; outside of a named run folder nothing."""
        if self._named is not None:
            return book.find_ledger(self._named)
        runs = self._session.run_folder.path.parent
        return runs / book.LEDGER_FILE if runs.name == RUNS_FOLDER else None


def offloaded(folder: RunFolder) -> tuple[str, ...]:
    """Return what the ranks' journals tell of offloaded models; touches the disk.

    Args:
        folder: Of the run.
    """
    found: dict[str, None] = {}
    for journal in sorted(folder.journals.glob("*.jsonl")):
        told = (str(entry.get("what", "")) for entry in read_early(journal, "offloaded"))
        found.update(dict.fromkeys(told))
    return tuple(found)


def _spent(roster: Roster) -> tuple[PhaseTime, ...]:
    seconds: dict[Phase, float] = {}
    for rank in roster.ranks.values():
        for one in rank.spending.spent().phases:
            seconds[one.phase] = seconds.get(one.phase, 0.0) + one.seconds
    return longest_first(seconds)
