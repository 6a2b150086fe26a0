"""What a rule looks at, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.diagnosis.divergence.divergence import Divergence
from lightning_hangcheck.diagnosis.graph.wait_graph import WaitGraph
from lightning_hangcheck.diagnosis.job import JobReading, RankReading
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.evidence import Frame, Gap
from lightning_hangcheck.model.slugs import Cause, Phase
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.kernel_targets import endless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.reading.rank_activity import Activity

Certainty = Literal["proven", "idle", "busy", "circling", "other", "moving"]
Need = Literal["stacks", "departures", "kernel"]


class Situation(Struct, frozen=True, kw_only=True):
    """What every rule sees.

    Attributes:
        suspects: Ranks where the wait-for graph ends. Where nobody is seen to wait, ranks that have
            been silent for the whole stall timeout.
        waited_for: Whether other ranks wait for the suspects.
        divergence: Where the ranks' ways part, if they do.
    """

    job: JobReading
    graph: WaitGraph
    suspects: tuple[RankReading, ...] = ()
    waited_for: bool = False
    divergence: Divergence | None = None

    def suspects_that_are(self, *activities: Activity) -> tuple[RankReading, ...]:
        """Return the suspects with one of these activities."""
        return tuple(one for one in self.suspects if one.activity in activities)

    def deadlocked(self, reading: RankReading) -> tuple[RankReading, ...]:
        """Return the ranks of the circle that a suspect is in, if none of them can leave it.

        Suspects stand where the graph ends: a circle there leads to nobody else, so it is proven
        that nobody ends it where each member waits without a time limit, and none moves meanwhile.

        Returns:
            None where there is no such circle.
        """
        members = self.cycle(reading)
        still = all(
            (one.activity == "waiting" and one.doing.observed.activity != "moving")
            or (one.activity == "idle" and endless(one.targets))
            for one in members
        )
        return members if still and self.waited_for else ()

    def cycle(self, reading: RankReading) -> tuple[RankReading, ...]:
        """Return the ranks that wait for each other with this one; see `WaitGraph.circle`."""
        return tuple(self.job.ranks[rank] for rank in self.graph.cycle(reading.rank))

    def certainty(self, activity: Activity) -> Certainty:
        """Return what an activity proves: nothing, where nobody is seen to wait for the rank."""
        if not self.waited_for or activity not in ("idle", "busy"):
            return "other"
        return "idle" if activity == "idle" else "busy"


class Finding(Struct, frozen=True, kw_only=True):
    """What a rule found.

    Attributes:
        culprits: May be empty where nothing tells.
        certainty: Decides, with the silence, what the finding is called; see `patience`.
        confidence: From 0, a guess, to 1, proven.
        silence_s: The silence that counts.
        sentence: Who, where, why and for how long; who waits is added to it.
        waited_for: Whether others wait for the culprits.
        gone: A culprit has no process any more.
        pace: The slowest of the culprits', if all are known.
        goes_on_after_s: Seconds after which a guard ends what a culprit waits in, and the program
            goes on; 0 where nobody does.
        samples: Fewest usable samples of any culprit.
        span_s: Shortest span of these, seconds.
        suspect_after_s: Least silence for a suspicion, seconds.
        aspect: Of the cause, where some remedies help only against one.
        place: Line of the user's own code that the finding is about.
        phase: Where in its life the first culprit is.
    """

    cause: Cause
    culprits: tuple[int, ...]
    certainty: Certainty
    confidence: float
    silence_s: float
    sentence: str
    waited_for: bool = False
    gone: bool = False
    pace: Pace | None = None
    goes_on_after_s: float = 0.0
    samples: int = 0
    span_s: float = 0.0
    suspect_after_s: float = 2.0
    aspect: str | None = None
    place: Frame | None = None
    phase: Phase | None = None
    evidence: tuple[EvidenceItem, ...] = ()
    gaps: tuple[Gap, ...] = ()


class Rule(Struct, frozen=True):
    """A rule and the evidence that it cannot do without."""

    cause: Cause
    needs: tuple[Need, ...]
    find: Callable[[Situation], Finding | None]


class Measure(Struct, frozen=True, kw_only=True):
    """How long, and how well, culprits were seen to stand still."""

    silence_s: float
    pace: Pace | None
    samples: int
    span_s: float


def measure(culprits: Sequence[RankReading]) -> Measure:
    """Measure culprits together: the longest silence, the least evidence, the slowest pace.

    Args:
        culprits: At least one.
    """
    paces = [one.view.pace for one in culprits if one.view.pace is not None]
    known = len(paces) == len(culprits) and all(pace.known for pace in paces)
    return Measure(
        silence_s=max(one.silence_s for one in culprits),
        pace=max(paces, key=lambda pace: pace.longest_pause_s) if known else None,
        samples=min(one.doing.observed.samples for one in culprits),
        span_s=min(one.doing.observed.span_s for one in culprits),
    )


def _goes_on_after_s(culprit: RankReading) -> float:
    sections = culprit.view.beat.sections if culprit.view.beat is not None else ()
    return max((section.goes_on_after_s or 0.0 for section in sections), default=0.0)


def blame(
    culprits: Sequence[RankReading],
    cause: Cause,
    certainty: Certainty,
    confidence: float,
    sentence: str,
    *,
    waited_for: bool,
) -> Finding:
    """Build the finding that most rules make; the first culprit gives place and phase.

    Args:
        culprits: At least one.
        cause: Slug.
        certainty: As in `Finding`.
        confidence: As in `Finding`.
        sentence: As in `Finding`.
        waited_for: As in `Finding`.
    """
    measured = measure(culprits)
    if certainty == "busy" and any(one.doing.circling for one in culprits):
        certainty = "circling"
    return Finding(
        cause=cause,
        culprits=tuple(one.rank for one in culprits),
        certainty=certainty,
        confidence=confidence,
        sentence=sentence,
        waited_for=waited_for,
        gone=any(not one.alive for one in culprits),
        place=culprits[0].place,
        phase=culprits[0].phase,
        silence_s=measured.silence_s,
        pace=measured.pace,
        goes_on_after_s=max(map(_goes_on_after_s, culprits)),
        samples=measured.samples,
        span_s=measured.span_s,
    )
