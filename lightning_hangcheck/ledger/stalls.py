"""The silences of a run, with what each cost. Pure: time is a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.ledger.spending import blocked_rank_hours
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

STANDING = ("suspect", "hang", "dead")


class Stall(Struct, frozen=True, kw_only=True):
    """One silence.

    Attributes:
        verdict: The gravest that was told of it: ``suspect``, ``hang``, ``dead``.
        explained: Whether that verdict named a cause.
    """

    verdict: str
    cause: str = ""
    phase: str = ""
    seconds: float
    rank_hours: float
    explained: bool
    summary: str = ""


class Stalls:
    """Collects the silences of one run from the verdicts that are told."""

    def __init__(self) -> None:
        self._over: list[Stall] = []
        self._standing: Verdict | None = None
        self._told_ns = 0

    def take(self, verdict: Verdict, now_ns: int) -> None:
        """Take a verdict.

        Args:
            verdict: That is told.
            now_ns: Monotonic nanoseconds.
        """
        if verdict.verdict in STANDING:
            self._standing, self._told_ns = verdict, now_ns
        elif verdict.verdict == "recovered" and self._standing is not None:
            self._close(verdict.stalled_for_s)

    def ended(self, now_ns: int) -> tuple[Stall, ...]:
        """Return all silences of the run, which ends now; one that stands lasted until now."""
        if self._standing is not None:
            since_told = max(0, now_ns - self._told_ns) / NANOSECONDS
            self._close(self._standing.stalled_for_s + since_told)
        return tuple(self._over)

    def _close(self, seconds: float) -> None:
        standing, self._standing = self._standing, None
        if standing is None:
            return
        cause = standing.cause or ""
        self._over.append(
            Stall(
                verdict=standing.verdict,
                cause=cause,
                phase=standing.phase or "",
                seconds=round(seconds, 3),
                rank_hours=round(blocked_rank_hours(standing.world_size, seconds), 6),
                explained=cause not in ("", "unknown"),
                summary=standing.summary,
            )
        )
