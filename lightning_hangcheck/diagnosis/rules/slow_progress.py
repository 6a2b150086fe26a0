"""slow_progress: the others wait for a rank that moves; it is slow, never stuck."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within


def find(situation: Situation) -> Finding | None:
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
    return blame(moving, "slow_progress", "moving", 0.7, sentence, waited_for=waited_for)


RULE = Rule(cause="slow_progress", needs=("stacks",), find=find)
