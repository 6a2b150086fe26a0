"""How a cause is written: what a rule looks at, what it finds, and how it says so.

The decorator only registers rules. A rule's arguments are the evidence that it needs, by their
names in `engine.EVIDENCE`. A rule that is asked of each suspect is a row: it returns what is
`Seen`; the confidence and who could end the wait are data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from lightning_hangcheck.judge.activity import Activity
from lightning_hangcheck.judge.divergence import Divergence
from lightning_hangcheck.judge.graph import WaitGraph
from lightning_hangcheck.judge.job import JobReading, RankReading
from lightning_hangcheck.judge.patience import EndedBy, Patience
from lightning_hangcheck.judge.threads import WRITES
from lightning_hangcheck.judge.wording import duration, name_ranks, process_name, within
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.evidence import Frame, Gap, WaitTarget
from lightning_hangcheck.model.flight import FLIGHT_RECORD
from lightning_hangcheck.model.slugs import Cause, Certainty, Phase
from lightning_hangcheck.model.verdict import EvidenceItem

Need = Literal["stacks", "kernel"]
"""Evidence that some rank must have before a rule is asked; if none has it, a gap says so."""
Sure = tuple[float, float] | tuple[float, float, float]
"""Confidence if others wait for the culprits, and if nobody is seen to; a third value if others
wait and nobody could end it."""
NO_RECORD = Gap(
    kind="flight_record",
    what=FLIGHT_RECORD,
    rank=None,
    why="none was taken of all ranks: which collective each is in is told from stacks alone",
)
MOST_SHOWN = 4
"""Ranks, threads or ways that a sentence names; the verdict's tables have them all."""


class Situation(Struct, frozen=True, kw_only=True):
    """What every rule sees.

    Attributes:
        suspects: Ranks where the wait-for graph ends. If no wait between ranks shows, ranks that
            were silent for the whole stall timeout; in a standstill those that hold it up.
        waited_for: Whether other ranks wait for the suspects.
        standstill: No rank waits for another, and none does anything.
        divergence: Where ranks diverge, if they do.
    """

    job: JobReading
    graph: WaitGraph
    patience: Patience
    suspects: tuple[RankReading, ...] = ()
    waited_for: bool = False
    standstill: bool = False
    divergence: Divergence | None = None

    def suspects_that_are(self, *activities: Activity) -> tuple[RankReading, ...]:
        """Return the suspects with one of these activities."""
        return tuple(reading for reading in self.suspects if reading.activity in activities)

    def cycle(self, reading: RankReading) -> tuple[RankReading, ...]:
        """Return the ranks of the closed circle in which this rank waits; empty if none."""
        return tuple(self.job.ranks[rank] for rank in self.patience.circles.get(reading.rank, ()))

    def deadlocked(self, reading: RankReading) -> tuple[RankReading, ...]:
        """Return that circle if nobody could end the wait; else empty."""
        proven = self.waited_for and self.patience.who_ends([reading]) == "nobody"
        return self.cycle(reading) if proven else ()


class Finding(Struct, frozen=True, kw_only=True):
    """What a rule found; culprits are empty if nothing tells who they are.

    Attributes:
        ended_by: Who could end it; with the silence this decides the verdict, see `patience`.
        confidence: From 0, a guess, to 1, proven.
        silence_s: The silence that counts.
        sentence: Who, where, why and for how long; who waits is added later.
        gone: A culprit has no process any more.
        held_up: Ranks that stand still because of the culprits, so that no other rule need explain
            them.
        pace: The slowest of the culprits' paces, if all are known.
        goes_on_after_s: Seconds after which a guard ends a culprit's wait; 0 if none does.
        samples: Fewest usable samples of any culprit, over ``span_s`` seconds at least.
        slept_s: Seconds for which all culprits slept when `hangcheck attach` came, as far as known.
        aspect: Variant of the cause, if some remedies help only against one.
        test: Words for the test under which the place stands, if a rank left it out; empty if
            unknown.
        certainty: What named the culprits, if a rule says.
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
    held_up: tuple[int, ...] = ()
    pace: Pace | None = None
    goes_on_after_s: float = 0.0
    samples: int = 0
    span_s: float = 0.0
    slept_s: float = 0.0
    aspect: str | None = None
    place: Frame | None = None
    test: str | None = None
    phase: Phase | None = None
    evidence: tuple[EvidenceItem, ...] = ()
    gaps: tuple[Gap, ...] = ()
    certainty: Certainty | None = None


class Seen(Struct, frozen=True, kw_only=True):
    """What a row says of one suspect; the first suspect's sentence is used.

    Attributes:
        text: The sentence, as `say` writes it with ``words``.
        place: If it is not the suspect's own; ``sure`` and ``ended_by``, if not the row's.
        alike: The sentence speaks of all suspects with an equal value.
        evidence: Pairs of kind and fact.
    """

    text: str
    words: Mapping[str, str] = {}
    aspect: str | None = None
    place: Frame | None = None
    sure: Sure | None = None
    ended_by: EndedBy | None = None
    alike: object = None
    evidence: Sequence[tuple[str, str]] = ()


class Rule(Struct, frozen=True, kw_only=True):
    """A registered rule: a row, asked of each suspect with an activity of `of`, or asked once.

    Attributes:
        order: Of two equally grave findings the rule with the lower order counts: the more
            specific.
        evidence: Names of its arguments, see `engine.EVIDENCE`; of a row all but the suspect.
        needs: Without this evidence the rule is not asked: no rule guesses.
        ended_by: Of a row, if it is not what `patience` says.
    """

    causes: tuple[Cause, ...]
    order: int
    find: Callable[..., Any]
    evidence: tuple[str, ...]
    needs: tuple[Need, ...] = ()
    of: tuple[Activity, ...] = ()
    sure: Sure = (0.0, 0.0)
    ended_by: EndedBy | None = None


RULES: list[Rule] = []
Find = Callable[..., Any]


def rule(*causes: Cause, of: tuple[Activity, ...] = (), **options: Any) -> Callable[[Find], Find]:  # noqa: ANN401 - the fields of `Rule`
    """Register a rule that returns a `Finding`; with `of`, a row that returns what is `Seen`."""

    def register(find: Find) -> Find:
        arguments = find.__code__.co_varnames[: find.__code__.co_argcount]
        evidence = arguments[1:] if of else arguments
        RULES.append(Rule(causes=causes, find=find, evidence=evidence, of=of, **options))
        return find

    return register


ONE_OR_MANY = re.compile(r"\[([^\[\]|]*)\|([^\[\]|]*)\]")
MARKS = frozenset(",;:")


def say(who: Sequence[RankReading], text: str, /, **words: str) -> str:
    """Write a sentence about ranks: ``{who} [waits|wait] {at} for {what}``.

    Of ``[one|many]`` the half for that number of ranks is used. ``{who}`` names them, ``{since}``
    is the longest silence, ``{at}`` the first rank's line, unless a word of that name is given.
    Empty words leave no gap.
    """
    alone = len({reading.rank for reading in who}) == 1
    since = duration(max(reading.silence_s for reading in who))
    known = {"who": names(who), "since": since, "at": within(who[0].place), **words}
    parts: list[str] = []
    for part in ONE_OR_MANY.sub(lambda found: found[1 if alone else 2], text).split(" "):
        said = part.format_map(known)
        if parts and said in MARKS:
            parts[-1] += said
        elif said and said not in MARKS:
            parts.append(said)
    return " ".join(parts)


def names(who: Sequence[RankReading]) -> str:
    """Name ranks: ``rank 1``, ``ranks 1,3``."""
    return name_ranks(reading.rank for reading in who)


def filling(target: WaitTarget) -> str:
    """Name who should read a full pipe that a write waits for; empty for other waits."""
    if target.kind != "pipe" or target.call not in WRITES:
        return ""
    if not target.holders:
        return "writing to a full pipe, and who should read it was not seen"
    readers = " and ".join(map(process_name, target.holders[:MOST_SHOWN]))
    return f"writing to a full pipe that {readers} should read"


def blame(
    situation: Situation,
    culprits: Sequence[RankReading],
    cause: Cause,
    sentence: str,
    /,
    *,
    sure: Sure | float,
    **fields_given: Any,  # noqa: ANN401 - the fields of `Finding`
) -> Finding:
    """Blame ranks: fields that the rule does not give are read from the culprits.

    The first culprit gives place and phase; all together the longest silence, the least evidence,
    and the slowest pace.
    """
    paces = [reading.view.pace for reading in culprits if reading.view.pace is not None]
    known = len(paces) == len(culprits) and all(pace.known for pace in paces)
    guarded = (section.goes_on_after_s for reading in culprits for section in reading.beat.sections)
    by = fields_given.get("ended_by") or situation.patience.who_ends(culprits)
    waited = fields_given.get("waited_for", situation.waited_for)
    if isinstance(sure, tuple):
        awaited = sure[-1] if by == "nobody" and len(sure) > 2 else sure[0]
        sure = awaited if waited else sure[1]
    raised = (
        EvidenceItem("exception", reading.rank, f"{what} {error}")
        for reading in culprits[:MOST_SHOWN]
        for what, error in (
            ("its main thread handles", reading.handling),
            ("an exception had ended its thread", reading.beat.thread_error),
        )
        if error
    )
    read: dict[str, Any] = {
        "culprits": tuple(reading.rank for reading in culprits),
        "waited_for": waited,
        "gone": any(not reading.alive for reading in culprits),
        "place": culprits[0].place,
        "phase": culprits[0].phase,
        "silence_s": max(reading.silence_s for reading in culprits),
        "pace": max(paces, key=lambda pace: pace.longest_pause_s) if known else None,
        "goes_on_after_s": max((after_s or 0.0 for after_s in guarded), default=0.0),
        "samples": min(reading.process_activity.samples for reading in culprits),
        "span_s": min(reading.process_activity.span_s for reading in culprits),
        "slept_s": min(reading.view.slept_for_s or 0.0 for reading in culprits),
    }
    evidence = (*fields_given.pop("evidence", ()), *raised)
    fields = {**read, **fields_given, "ended_by": by, "evidence": evidence}
    return Finding(cause=cause, confidence=sure, sentence=sentence, **fields)
