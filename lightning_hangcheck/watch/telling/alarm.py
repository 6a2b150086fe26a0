"""Which verdicts are worth telling: each alarm once, its end once, then the next. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from lightning_hangcheck.model.naming.slugs import SEVERITY
from lightning_hangcheck.reading.wording import duration

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import VerdictKind
    from lightning_hangcheck.model.verdict import Verdict

Telling = Literal["line", "report", "named", "silent", "aftermath"]
"""``named``: a line that names who holds a hang up of which nobody could be named before."""
PROVEN = ("hang", "dead")
CALLED: dict[VerdictKind, str] = {
    "slow": "slow",
    "suspect": "suspected",
    "hang": "called a hang",
    "dead": "called dead",
}
"""What was said of a job while its alarm stood."""


class Alarm:
    """The alarm of one job: calm, or raised by a verdict that still stands."""

    def __init__(self) -> None:
        self._standing: Verdict | None = None
        self._silent_before_s = 0.0
        self._named = False

    @property
    def standing(self) -> Verdict | None:
        """The verdict that raised the alarm, while it stands."""
        return self._standing

    @property
    def proven(self) -> bool:
        """Whether a hang stands."""
        return self._standing is not None and self._standing.verdict in PROVEN

    def take(self, verdict: Verdict, *, closer: bool = False) -> Telling | None:
        """Take the newest judgement.

        Args:
            verdict: Of all ranks.
            closer: It rests on a closer look, so that its facts are new if nothing else is.

        Returns:
            How to tell it; None when there is nothing new in it, a quieter or equal judgement on
            ranks that are known already.
        """
        severity = SEVERITY.get(verdict.verdict, 0)
        standing = self._standing
        if severity == 0:
            return None
        if standing is not None:
            known = SEVERITY[standing.verdict]
            same = severity == known and _same(verdict, standing)
            if same and _shows_more(verdict, standing):
                self._standing = verdict
            elif severity < known or (same and not closer):
                return None
            if severity == known and not self.proven and _names_fewer(verdict, standing):
                return None
            if same:
                return "silent"
        if standing is None:
            self._silent_before_s = verdict.stalled_for_s
        self._standing = verdict
        if severity < SEVERITY["hang"]:
            return "line"
        named_before, self._named = self._named, self._named or bool(verdict.culprits)
        if standing is None or standing.verdict not in PROVEN:
            self._named = bool(verdict.culprits)
            return "report"
        return "named" if self._named and not named_before else "silent"

    def recovered(self, detected_at: str, silent_for_s: float) -> Verdict | None:
        """The culprits advance again: return the verdict that ends the alarm, None if none stood.

        Args:
            detected_at: When the progress was seen, ISO 8601 UTC.
            silent_for_s: How long the silence had lasted, seconds.
        """
        standing, self._standing = self._standing, None
        if standing is None:
            return None
        called_s = max(0.0, silent_for_s - self._silent_before_s)
        return replace(
            standing,
            verdict="recovered",
            detected_at=detected_at,
            stalled_for_s=round(silent_for_s, 3),
            remedies=(),
            evidence=tuple(item for item in standing.evidence if item.kind != "lost"),
            summary=f"moves again, was {CALLED[standing.verdict]} for {duration(called_s)} (silent "
            f"for {duration(silent_for_s)}); what was seen: {standing.summary}",
        )


def _same(verdict: Verdict, standing: Verdict) -> bool:
    return (verdict.verdict, verdict.culprits, verdict.cause) == (
        standing.verdict,
        standing.culprits,
        standing.cause,
    )


def _shows_more(verdict: Verdict, standing: Verdict) -> bool:
    """Whether it is on ranks of nodes that were not heard before: it is the whole job's verdict."""
    return len(verdict.ranks) > len(standing.ranks)


def _names_fewer(verdict: Verdict, standing: Verdict) -> bool:
    """Whether a look only missed some of the ranks that are stuck: nobody waits for the others yet.

    Of ranks that poll alike some are awake at each look, or hardly get a processor.
    """
    missed = set(standing.culprits) - set(verdict.culprits)
    fewer = bool(missed) and set(verdict.culprits) <= set(standing.culprits)
    return fewer and verdict.cause == standing.cause and missed.isdisjoint(verdict.victims)
