"""slow_progress of ranks that make steps: far below their own pace, by work of their own.

Ranks that wait for each other in each step are slow together, whoever holds them up. It is the one
whose own work grew, loader or forward, by most of what a step takes more. Where nobody's did, or no
parts were timed, it is the one that was at work in most looks, while the others waited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.graph.wait_graph import WaitGraph
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.model.step_times import PARTS, StepTimes
from lightning_hangcheck.model.verdict import Edge, EvidenceItem
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within
from lightning_hangcheck.text.amounts import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.model.naming.slugs import Phase
    from lightning_hangcheck.model.slowness import SlowRank

ALIKE = 5.0
"""Times its longest sustained step, for a job whose ranks are slow alike: it may have been given
other work, such as a backbone that is trained from now on. Of one rank among others less will do.
"""
OWN_SHARE = 0.5
"""Of what a step takes more, the share from which it is work of that rank itself."""
LEAST_LOOKS = 6
AT_WORK, WAITS = 0.4, 0.6
"""Shares of the looks in which a rank waited for others: of one that they wait for at most, and of
one that only waits at least. In between, and where all are alike, looks tell nothing."""
SHOWN = 4
ASPECTS = ("loader", "forward", "waiting")
PHASES: tuple[Phase, ...] = ("dataloading", "training_step", "training_step")
WAITING = 2
"""Number of the part in which ranks also wait for each other."""


def slow_steps(situation: Situation) -> Finding | None:
    """Blame the ranks whose own work grew; all that are slow, where it was no one's own."""
    job, slowness = situation.job, situation.job.case.slowness
    if slowness is None or not slowness.ranks:
        return None
    own = [one for one in slowness.ranks if _own_share(one) >= OWN_SHARE]
    known = own or _at_work(slowness.ranks)
    blamed = known or slowness.ranks
    somewhere = len(job.ranks) < job.world_size
    if not known and somewhere:
        return None  # the one they wait for may be on another node
    alone = len(blamed) < max(job.world_size, len(job.ranks))
    if not alone and max(one.ratio for one in blamed) < ALIKE:
        return None
    part = _part_that_grew(blamed)
    return Finding(
        cause="slow_progress",
        culprits=tuple(one.rank for one in blamed),
        ended_by="pace",
        confidence=0.9 if own else 0.7 if known else 0.5,
        silence_s=0.0,
        sentence=_sentence(blamed, part, slowness.for_s, known=bool(known)),
        aspect=ASPECTS[part],
        phase=PHASES[part],
        place=blamed[0].place,
        evidence=tuple(_facts(slowness.ranks)),
    )


SLOW_STEPS = Rule(cause="slow_progress", needs=(), find=slow_steps)


def waits_in_each_step(job: JobReading, culprits: Sequence[int]) -> WaitGraph:
    """Draw who is slow only because others are: what a look happened to see tells less.

    Args:
        job: All ranks.
        culprits: Those that `slow_steps` blames.
    """
    slowness = job.case.slowness
    ranks = [one.rank for one in slowness.ranks] if slowness is not None else []
    victims = [rank for rank in ranks if rank not in culprits]
    return WaitGraph(
        edges=tuple(
            Edge(f"rank:{victim}", f"rank:{culprit}", "each step")
            for victim in victims
            for culprit in culprits
        ),
        ends=tuple(culprits),
        waiters=tuple(victims),
        between_ranks=bool(victims),
    )


def _own_share(one: SlowRank) -> float:
    grown = one.grown
    return grown.own_s / grown.seconds if one.in_parts and grown.seconds > 0 else 0.0


def _at_work(ranks: Sequence[SlowRank]) -> list[SlowRank]:
    """Return the ranks for which all the others were seen to wait; none where that is not so."""
    if min(one.looks for one in ranks) < LEAST_LOOKS:
        return []
    shares = [one.waited / one.looks for one in ranks]
    if any(AT_WORK < share < WAITS for share in shares):
        return []
    at_work = [one for one, share in zip(ranks, shares, strict=True) if share <= AT_WORK]
    return at_work if len(at_work) < len(ranks) else []


def _part_that_grew(blamed: Sequence[SlowRank]) -> int:
    """Return the number of the part that grew most, of the rank that has it worst."""
    worst = max((one.grown for one in blamed), key=lambda grown: grown.seconds)
    return max(range(len(PARTS)), key=lambda part: worst.parts[part])


def _sentence(blamed: Sequence[SlowRank], part: int, for_s: float, *, known: bool) -> str:
    who = [one.rank for one in blamed]
    worst = max(blamed, key=lambda one: one.ratio)
    have, its = verb(who, "has", "have"), verb(who, "its", "their")
    makes = f"{name_ranks(who)} {have} made steps far below {its} own pace"
    whole = f"for {duration(for_s)}: {_changed(worst.before.seconds, worst.now.seconds)}"
    seen = join("seen", within(worst.place)) if known and worst.place is not None else ""
    told = "; ".join(filter(None, (_where(worst, part, who), seen)))
    unknown = "" if known or len(who) == 1 else "; nothing tells who waits for whom"
    return f"{makes} {whole}; {told}{unknown}"


def _where(worst: SlowRank, part: int, who: Sequence[int]) -> str:
    if not worst.in_parts:
        return "the parts of a step are not timed"
    of_whom = f" of rank {worst.rank}" if len(who) > 1 else ""
    before, now = worst.before.parts[part], worst.now.parts[part]
    return f"most in {PARTS[part]}{of_whom}: {_changed(before, now)}"


def _changed(before_s: float, now_s: float) -> str:
    return f"{seconds_in_words(now_s)} instead of {seconds_in_words(before_s)}"


def _facts(ranks: Sequence[SlowRank]) -> Iterator[EvidenceItem]:
    """Say of the ranks whose own work is most how a step was, and is."""
    for one in sorted(ranks, key=lambda one: -one.now.own_s)[:SHOWN]:
        held = f"never above {seconds_in_words(one.known_s)} for so long before"
        steps = f"a step {_in_parts(one.now, one)}; before {_in_parts(one.before, one)}"
        yield EvidenceItem("pace", one.rank, f"rank {one.rank}: {steps}; {held}")
        if one.looks:
            seen = f"rank {one.rank} waited for others in {one.waited} of {one.looks} looks"
            text = join(f"{seen}, else most often" if one.place else seen, within(one.place))
            yield EvidenceItem("pace", one.rank, text)


def _in_parts(step: StepTimes, one: SlowRank) -> str:
    whole = seconds_in_words(step.seconds)
    if not one.in_parts:
        return whole
    pairs = zip(PARTS, step.parts, strict=True)
    return f"{whole} ({', '.join(f'{name} {seconds_in_words(part)}' for name, part in pairs)})"
