"""spinning: a rank burns CPU in the same functions, sample after sample."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within


def find(situation: Situation) -> Finding | None:
    """Blame the suspects that are busy without moving."""
    busy = situation.suspects_that_are("busy")
    if not busy:
        return None
    who = [reading.rank for reading in busy]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "burnt CPU",
        within(busy[0].place),
        f"for {duration(max(reading.silence_s for reading in busy))} without advancing",
    )
    return blame(
        busy,
        "spinning",
        situation.certainty("busy"),
        0.7 if situation.waited_for else 0.4,
        sentence,
        waited_for=situation.waited_for,
    )


RULE = Rule(cause="spinning", needs=("stacks",), find=find)
