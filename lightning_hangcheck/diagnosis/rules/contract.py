"""What a rule looks at, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.diagnosis.divergence.divergence import Divergence
from lightning_hangcheck.diagnosis.graph.wait_graph import WaitGraph
from lightning_hangcheck.diagnosis.job import JobReading
from lightning_hangcheck.diagnosis.rank_reading import RankReading
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.evidence import Frame, Gap
from lightning_hangcheck.model.naming.slugs import Cause, Phase
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.waits.kernel_targets import endless

if TYPE_CHECKING:
    from lightning_hangcheck.reading.activity.rank_activity import Activity

EndedBy = Literal[
    "nobody",
    "person",
    "inside",
    "outside",
    "known_pace",
    "circles",
    "unknown_pace",
    "announced",
    "last_call",
    "never_coming",
    "moving",
    "pace",
]
"""Who could end a wait, a word for each row of the contract's table (see `patience`): ``inside``
only something inside the job; ``known_pace``, ``circles`` and ``unknown_pace`` a computation, by
what is known of it; ``announced`` ranks that have not come, ``last_call`` where the job goes on
without them after a while, ``never_coming`` where they can't; ``moving`` is no wait at all, nor is
``pace``: steps are made, far below the ranks' own pace."""
Need = Literal["stacks", "process_exits", "kernel"]
"""Evidence of any rank: Python stacks, a rank without a process, the kernel's view."""


class Situation(Struct, frozen=True, kw_only=True):
    """What every rule sees.

    Attributes:
        suspects: Ranks where the wait-for graph ends. Where nobody is seen to wait, ranks that have
            been silent for the whole stall timeout; in a standstill those that hold it up.
        waited_for: Whether other ranks wait for the suspects.
        standstill: No rank waits for another, and none does anything.
        divergence: Where the ranks' ways part, if they do.
    """

    job: JobReading
    graph: WaitGraph
    suspects: tuple[RankReading, ...] = ()
    waited_for: bool = False
    standstill: bool = False
    divergence: Divergence | None = None

    def suspects_that_are(self, *activities: Activity) -> tuple[RankReading, ...]:
        """Return the suspects with one of these activities."""
        return tuple(one for one in self.suspects if one.activity in activities)

    def deadlocked(self, reading: RankReading) -> tuple[RankReading, ...]:
        """Return the ranks of the cycle that a suspect is in, if none of them can leave it.

        Suspects stand where the graph ends: a cycle there leads to nobody else, so it is proven
        that nobody ends it where each member waits without a time limit, none moves meanwhile, and
        no free thread of those that it leads through may end it.

        Returns:
            None where there is no such cycle.
        """
        members = self.cycle(reading)
        still = all(
            (
                one.activity == "waiting"
                and one.process_activity.activity != "moving"
                and not one.kept_by_message
            )
            or (
                one.activity == "idle"
                and endless(one.targets)
                and not _is_shared(one)
                and not self._may_be_helped(one)
            )
            for one in members
        )
        return members if still and self.waited_for else ()

    def _may_be_helped(self, reading: RankReading) -> bool:
        """Whether a free thread, be it of its own process, may end what a rank waits for."""
        along = self.job.processes.threads_along(reading.view.host, reading.own_targets)
        return any(True for _ in along)

    def cycle(self, reading: RankReading) -> tuple[RankReading, ...]:
        """Return the ranks that wait for each other with this one; see `WaitGraph.cycle`."""
        return tuple(self.job.ranks[rank] for rank in self.graph.cycle(reading.rank))


def _is_shared(reading: RankReading) -> bool:
    """Whether it waits at memory that processes share: any thread of theirs may write there."""
    return any(target.kind == "shared" for target in reading.targets)


class Finding(Struct, frozen=True, kw_only=True):
    """What a rule found.

    Attributes:
        culprits: May be empty where nothing tells.
        ended_by: Who could end it: decides, with the silence, what the finding is called; see
            `patience`.
        confidence: From 0, a guess, to 1, proven.
        silence_s: The silence that counts.
        sentence: Who, where, why and for how long; who waits is added to it.
        waited_for: Whether others wait for the culprits.
        standstill: As in `Situation`.
        gone: A culprit has no process any more.
        left_standing: Ranks that stand still because the culprits are gone, or went elsewhere:
            nothing else is to be explained of them.
        pace: The slowest of the culprits', if all are known.
        goes_on_after_s: Seconds after which a guard ends what a culprit waits in, and the program
            goes on; 0 where nobody does.
        samples: Fewest usable samples of any culprit.
        span_s: Shortest time for which a culprit was seen: from its first sample to its last, or
            for as long as the kernel says that it slept, seconds.
        aspect: Of the cause, where some remedies help only against one.
        place: Line of the user's own code that the finding is about.
        test: Words for the test under which that line stands, where a rank left it out; empty
            where none is known.
        phase: Where in its life the first culprit is.
    """

    cause: Cause
    culprits: tuple[int, ...]
    ended_by: EndedBy
    confidence: float
    silence_s: float
    sentence: str
    waited_for: bool = False
    standstill: bool = False
    gone: bool = False
    left_standing: tuple[int, ...] = ()
    pace: Pace | None = None
    goes_on_after_s: float = 0.0
    samples: int = 0
    span_s: float = 0.0
    aspect: str | None = None
    place: Frame | None = None
    test: str | None = None
    phase: Phase | None = None
    evidence: tuple[EvidenceItem, ...] = ()
    gaps: tuple[Gap, ...] = ()


class Rule(Struct, frozen=True):
    """A rule, and the evidence without which it is skipped: no rule guesses."""

    cause: Cause
    needs: tuple[Need, ...]
    find: Callable[[Situation], Finding | None]


class Skipped(Struct, frozen=True):
    """A rule that could not be asked, and the evidence that it lacked."""

    cause: Cause
    lacks: tuple[Need, ...]
