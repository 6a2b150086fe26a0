"""spinning: a rank burns CPU in the same functions, sample after sample."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.standing_still import blame_standing


def find(situation: Situation) -> Finding | None:
    """Blame the suspects that are busy without moving."""
    busy = situation.suspects_that_are("busy")
    if not busy:
        return None
    return blame_standing(
        situation,
        busy,
        "spinning",
        situation.certainty("busy"),
        doing="burnt CPU",
        manner="without advancing",
        confidence=0.7 if situation.waited_for else 0.4,
    )


RULE = Rule(cause="spinning", needs=("stacks",), find=find)
