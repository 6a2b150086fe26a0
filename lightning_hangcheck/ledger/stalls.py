"""The silences of a run, with what each cost. Pure: time is a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.ledger.spending import rank_hours
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

STANDING = ("suspect", "hang", "dead")
OVER = ("crashed", "finished")
"""How a round ends, and with it its silence."""


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
        self._since_ns = 0

    def take(self, verdict: Verdict, now_ns: int) -> None:
        """Take a verdict; one that tells a silence again, or its aftermath, begins no other.

        Args:
            verdict: That is told.
            now_ns: Monotonic nanoseconds.
        """
        if verdict.verdict in STANDING:
            since_ns = now_ns - int(verdict.stalled_for_s * NANOSECONDS)
            self._since_ns = min(self._since_ns, since_ns) if self._standing else since_ns
            self._standing = verdict
        elif verdict.verdict == "recovered":
            self._close(verdict.stalled_for_s)
        elif verdict.verdict in OVER:
            self._close((now_ns - self._since_ns) / NANOSECONDS)

    def ended(self, now_ns: int) -> tuple[Stall, ...]:
        """Return all silences of the run, which ends now; one that stands lasted until now."""
        self._close((now_ns - self._since_ns) / NANOSECONDS)
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
                rank_hours=round(rank_hours(standing.world_size, seconds), 6),
                explained=cause not in ("", "unknown"),
                summary=standing.summary,
            )
        )
