"""Is the job shutting down? What ranks do then is no recovery, and no new hang.

Told by who asked for the end, or by ranks that leave a hang that was proven. Asked anew each time,
for a launcher may start new ranks; time is a parameter, in monotonic nanoseconds. The diagnosis is
imported only once it is needed (see `watch.loop`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.case import AskedEnd
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import RankView

OBEYED_WITHIN_S = 60.0
"""Time after which no more steps are begun: SLURM kills 30 s after its SIGTERM (KillWait), and
Lightning stops after the batch. A job that steps later was asked something else."""


class Shutdown:
    """The end of a job: who asked for it, and what its ranks show of it."""

    def __init__(self) -> None:
        self._asked: AskedEnd | None = None
        self._asked_ns = 0
        self._shown = False
        self._steps: dict[int, int | None] = {}
        self._gone: frozenset[int] = frozenset()

    @property
    def asked(self) -> AskedEnd | None:
        """Who asked for the end; None where nobody said so."""
        return self._asked

    @property
    def asked_ns(self) -> int:
        """When the end was asked for."""
        return self._asked_ns

    def ask(self, by: str, ranks: Sequence[RankView], suspected: str, now_ns: int) -> None:
        """Take down that somebody asks the job to end; who asks first counts.

        Args:
            by: As in `AskedEnd`.
            ranks: All ranks as they are now.
            suspected: As in `AskedEnd`.
            now_ns: The present.
        """
        from lightning_hangcheck.diagnosis.process_exit import ended_from_outside, failed

        self._shown = False
        if self._asked is not None:
            return
        before = tuple(view.rank for view in ranks if failed(view) and not ended_from_outside(view))
        self._asked = AskedEnd(by=by, failed_before=before, suspected=suspected)
        self._asked_ns = now_ns
        self._steps = {}

    def end_round(self) -> AskedEnd | None:
        """Forget what only the ranks of a round showed that has ended; return what others said."""
        if self._shown:
            self._asked = None
        return self._asked

    def hang_proven(self, ranks: Sequence[RankView]) -> None:
        """Remember who was gone when the hang was proven: more of them mean the end."""
        self._gone = frozenset(view.rank for view in ranks if view.process_exit is not None)

    def begun(
        self, ranks: Sequence[RankView], *, proven: bool, suspected: str = "", now_ns: int
    ) -> bool:
        """Whether the job is shutting down: it was asked to, or its ranks show that.

        Args:
            ranks: All ranks as they are now.
            proven: A hang stands: then any rank that leaves it shows the end.
            suspected: As in `AskedEnd`.
            now_ns: The present.
        """
        from lightning_hangcheck.diagnosis.asked_end import asked_by, shown_by

        if self._asked is not None and self._goes_on(ranks, now_ns):
            self._asked = None
        if self._asked is not None:
            return True
        by = shown_by(ranks)
        if by is not None:
            self.ask(by, ranks, suspected, now_ns)
            self._shown = True
            return True
        others = [view for view in ranks if proven and view.rank not in self._gone]
        return any(view.process_exit is not None or asked_by(view) for view in others)

    def _goes_on(self, ranks: Sequence[RankView], now_ns: int) -> bool:
        """Whether a rank makes new steps, long after it was asked to end."""
        if now_ns - self._asked_ns < OBEYED_WITHIN_S * NANOSECONDS:
            return False
        steps = {view.rank: view.beat.step for view in ranks if view.beat is not None}
        self._steps = self._steps or steps
        return steps != self._steps
