"""unknown, slow_progress: nothing more is known, or nothing is wrong but the pace.

Somebody does not advance, and what was seen does not tell who holds whom up, or why; or the others
wait for a rank that moves: it is slow, never stuck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.divergence.pending_collectives import PAIRED
from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import EndedBy, Finding, Rule, Situation
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.flight import FLIGHT_RECORD
from lightning_hangcheck.reading.waits.torch_waits import FOR_RANKS
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading

NO_RECORD = Gap(
    kind="flight_record",
    what=FLIGHT_RECORD,
    rank=None,
    why="none was taken: which collective each rank is in cannot be told from stacks alone",
)


def unknown(situation: Situation) -> Finding | None:
    """Say so where all ranks wait for each other, or where a suspect could not be seen."""
    job = situation.job
    waiting = job.waiting_in(FOR_RANKS)
    everybody = job.world_size > 1 and 0 < len(waiting) == len(job.ranks)
    if everybody:
        moving = any(reading.process_activity.activity == "moving" for reading in waiting)
        explained = situation.waited_for and not situation.suspects
        return None if moving or explained else _all_wait(situation, waiting)
    unseen = situation.suspects_that_are("unseen")
    if not unseen and all(one.activity == "waiting" for one in situation.suspects):
        unseen = situation.suspects
    return _unseen(situation, unseen) if unseen else None


UNKNOWN = Rule(cause="unknown", needs=(), find=unknown)


def slow_progress(situation: Situation) -> Finding | None:
    """Name the suspects that move, where others wait for them."""
    moving = situation.suspects_that_are("moving")
    if not moving:
        return None
    who = [reading.rank for reading in moving]
    sentence = join(
        name_ranks(who),
        verb(who, "moves", "move"),
        within(moving[0].place),
        "but" if moving[0].place is None else "and",
        verb(who, "has", "have"),
        "shown no progress for",
        duration(max(reading.silence_s for reading in moving)),
    )
    waited_for = situation.waited_for
    return blame(
        moving,
        cause="slow_progress",
        ended_by="moving",
        confidence=0.7,
        sentence=sentence,
        waited_for=waited_for,
        aspect="silent",
    )


SLOW_PROGRESS = Rule(cause="slow_progress", needs=("stacks",), find=slow_progress)


def _all_wait(situation: Situation, waiting: Sequence[RankReading]) -> Finding:
    """Ranks at different places wait for each other; at one and the same, the work may go on."""
    apart = situation.graph.between_ranks
    elsewhere = situation.job.elsewhere
    ends = set(situation.graph.ends) if apart else {reading.rank for reading in waiting}
    culprits = [reading for reading in waiting if reading.rank in ends]
    if not elsewhere and len(culprits) > 1 and all(map(_in_message, culprits)):
        return _unmatched(culprits, waiting)
    silence = min(reading.silence_s for reading in waiting)
    kept = any(reading.kept_by_message for reading in waiting)
    ended_by: EndedBy = "inside" if apart and not elsewhere and not kept else "unknown_pace"
    finding = blame(
        culprits,
        cause="unknown",
        ended_by=ended_by,
        confidence=0.2,
        sentence=_sentence(culprits, waiting, silence, unseen=bool(elsewhere)),
        waited_for=apart,
    )
    return replace(
        finding,
        silence_s=silence,
        pace=None,
        culprits=() if elsewhere else finding.culprits,
        gaps=() if all(one.view.flight is not None for one in waiting) else (NO_RECORD,),
    )


def _in_message(reading: RankReading) -> bool:
    """Whether it waits in a message of which it is known how many were posted."""
    wait, flight = reading.wait, reading.view.flight
    counted = flight is not None and flight.messages is not None
    return counted and wait is not None and wait.name in PAIRED and not reading.kept_by_message


def _unmatched(culprits: Sequence[RankReading], waiting: Sequence[RankReading]) -> Finding:
    """Each has posted as many messages as the other, yet none arrives, and no byte goes anywhere.

    By number they match, so they differ in what is not counted: their tag, group or size.
    """
    silence = min(reading.silence_s for reading in culprits)
    finding = blame(
        culprits,
        cause="collective_mismatch",
        ended_by="inside",
        confidence=0.6,
        sentence=f"{_sentence(culprits, waiting, silence)}; as many are sent as received, so their "
        "tags, groups or sizes differ",
        waited_for=True,
        aspect="tags",
    )
    return replace(finding, silence_s=silence, pace=None)


def _sentence(
    culprits: Sequence[RankReading],
    waiting: Sequence[RankReading],
    silence_s: float,
    *,
    unseen: bool = False,
) -> str:
    first, wait = culprits[0], culprits[0].wait
    where = join(f"in {wait.name}" if wait is not None else "", _called(first))
    since = duration(silence_s)
    if len(culprits) == 1 and len(waiting) > 1:
        return f"rank {first.rank} has waited {where} for {since}, apart from all other ranks"
    other = next((one for one in culprits if one.frames != first.frames), None)
    everybody = len(culprits) == len(waiting)
    if other is None:
        ranks = f"all {len(waiting)} ranks" if everybody else name_ranks(_numbers(culprits))
        who = f"{ranks} have" if len(waiting) > 1 else f"rank {first.rank} has"
        whom = "nothing tells for whom"
        if unseen:
            whom = "for whom is open, as not all ranks were seen"
        return f"{who} waited {where} for {since}; {whom}"
    there = f"in {other.wait.name}" if other.wait is not None else "elsewhere"
    who = "all ranks" if everybody else name_ranks(_numbers(culprits))
    each = "for each other for" if everybody else "for"
    return (
        f"{who} have waited {each} {since}: rank {first.rank} {where}, "
        f"rank {other.rank} {join(there, _called(other))}"
    )


def _numbers(readings: Sequence[RankReading]) -> list[int]:
    return [one.rank for one in readings]


def _called(reading: RankReading) -> str:
    place = within(reading.place)
    return f"called {place}" if place else ""


def _unseen(situation: Situation, unseen: Sequence[RankReading]) -> Finding:
    who = [reading.rank for reading in unseen]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        f"shown no progress for {duration(max(reading.silence_s for reading in unseen))}",
        within(unseen[0].place),
        "and too little of it could be seen to say why",
    )
    waited_for = situation.waited_for
    return blame(
        unseen,
        cause="unknown",
        ended_by="unknown_pace",
        confidence=0.3,
        sentence=sentence,
        waited_for=waited_for,
    )
