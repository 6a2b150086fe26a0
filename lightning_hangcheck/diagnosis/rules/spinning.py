"""spinning: a rank burns CPU in the same functions, sample after sample, or its GPU never ends."""

from __future__ import annotations

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.standing_still import blame_standing


def find(situation: Situation) -> Finding | None:
    """Blame the suspects that are busy without moving; a busy GPU counts for who waits for it."""
    busy = situation.suspects_that_are("busy")
    if not busy:
        return None
    for_gpu = all(one.doing.for_gpu for one in busy)
    finding = blame_standing(
        situation,
        busy,
        "spinning",
        situation.certainty("busy"),
        doing="waited for a busy GPU" if for_gpu else "burnt CPU",
        manner="without advancing",
        confidence=0.7 if situation.waited_for else 0.4,
    )
    return replace(finding, aspect="gpu" if for_gpu else "cpu")


RULE = Rule(cause="spinning", needs=("stacks",), find=find)
