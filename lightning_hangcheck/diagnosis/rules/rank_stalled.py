"""rank_stalled: a rank stands still in its own code, and nothing more specific is known."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within


def find(situation: Situation) -> Finding | None:
    """Blame the suspects that are idle."""
    idle = situation.suspects_that_are("idle")
    if not idle:
        return None
    who = [reading.rank for reading in idle]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "stood still",
        within(idle[0].place),
        f"for {duration(max(reading.silence_s for reading in idle))} without using the CPU",
    )
    return blame(
        idle,
        "rank_stalled",
        situation.certainty("idle"),
        0.85 if situation.waited_for else 0.5,
        sentence,
        waited_for=situation.waited_for,
    )


RULE = Rule(cause="rank_stalled", needs=("stacks",), find=find)
