"""Keeps the file of `--prometheus` up to date, for node-exporter's textfile collector."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.alerts.metrics_text import RunReading, render
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.telling.newest_only import NewestOnly

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.watch.ranks.roster import Roster
    from lightning_hangcheck.watch.telling.publishing import Publisher

EVERY_S = 5.0
"""Prometheus asks every 15 s by habit; what is told is written at once."""
END_LIMIT_S = 1.0
STALLED = ("suspect", "hang", "dead")


class MetricsKeeper:
    """Keeps the file, by a thread of its own: storage that stalls delays nobody.

    Args:
        file: Where to; None to keep nothing.
    """

    def __init__(self, file: str | None) -> None:
        self._written_ns = 0
        self._told_ns = 0
        self._stall = Stall()
        self._writer = None if file is None else NewestOnly(Path(file).absolute())

    def update(
        self, roster: Roster, standing: Verdict | None, told: Publisher, now_ns: int
    ) -> None:
        """Write down how things are, now and then, and what was told at once.

        Args:
            roster: All ranks of this node.
            standing: The verdict that raised the alarm, while it stands.
            told: Knows when something was told, and the run folder.
            now_ns: Monotonic.
        """
        if self._writer is None:
            return
        self._writer.complain()
        self._stall.note(standing, now_ns)
        if told.told_ns == self._told_ns and now_ns - self._written_ns < EVERY_S * NANOSECONDS:
            return
        self._written_ns, self._told_ns = now_ns, told.told_ns
        self._writer.write(self._reading(roster, standing, told, now_ns))

    def end(self, roster: Roster, verdict: Verdict, told: Publisher, exit_code: int | None) -> None:
        """Leave the file as the run ended, so that it tells of nothing that is over."""
        if self._writer is None:
            return
        now_ns = time.monotonic_ns()
        self._stall.note(verdict, now_ns)
        self._writer.write(
            self._reading(roster, verdict, told, now_ns, watching=False, exit_code=exit_code)
        )
        self._writer.close(END_LIMIT_S)

    def _reading(
        self,
        roster: Roster,
        verdict: Verdict | None,
        told: Publisher,
        now_ns: int,
        *,
        watching: bool = True,
        exit_code: int | None = None,
    ) -> bytes:
        now_s = time.time()
        return render(
            RunReading(
                run_id=told.folder.run_id,
                standing=None if verdict is None else verdict.verdict,
                stall_s=self._stall.lasted_s(now_ns),
                progress={
                    number: now_s - rank.progress.silent_ns(now_ns) / NANOSECONDS
                    for number, rank in roster.ranks.items()
                },
                written=now_s,
                watching=watching,
                exit_code=exit_code,
            )
        )


class Stall:
    """How long a stall has lasted, by our own monotonic clock: another node may have told of it."""

    def __init__(self) -> None:
        self._verdict: Verdict | None = None
        self._since_ns = 0

    def note(self, verdict: Verdict | None, now_ns: int) -> None:
        """Take the newest verdict, as soon as it is known.

        Args:
            verdict: None where all is well.
            now_ns: Monotonic.
        """
        if verdict is not self._verdict:
            self._verdict = verdict
            lasted_s = 0.0 if verdict is None else verdict.stalled_for_s
            self._since_ns = now_ns - int(lasted_s * NANOSECONDS)

    def lasted_s(self, now_ns: int) -> float:
        """Return for how many seconds the job has not advanced; 0 where it does.

        Args:
            now_ns: Monotonic.
        """
        known = self._verdict
        if known is None or known.stalled_since is None or known.verdict not in STALLED:
            return 0.0
        return (now_ns - self._since_ns) / NANOSECONDS
