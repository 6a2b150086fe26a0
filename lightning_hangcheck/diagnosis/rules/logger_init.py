"""logger_init: a rank creates the experiment logger and does not come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.standing_still import blame_standing

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.scene import RankReading


def find(situation: Situation) -> Finding | None:
    """Blame suspects whose calls show, or whose open section says, that they create the logger.

    The names of the user's own functions are no such sign: there, the place says more.
    """
    creating = [
        reading
        for reading in situation.suspects_that_are("idle", "busy", "unseen")
        if reading.shows("logger_init")
    ]
    if not creating:
        return None
    return blame_standing(
        situation,
        creating,
        "logger_init",
        situation.certainty(creating[0].activity),
        doing="been creating the experiment logger",
        manner="without coming back",
        confidence=_confidence(situation, creating[0]),
    )


def _confidence(situation: Situation, first: RankReading) -> float:
    if first.activity == "unseen" or not situation.waited_for:
        return 0.6 if first.seen_by_calls else 0.5
    return 0.9 if first.seen_by_calls else 0.75


RULE = Rule(cause="logger_init", needs=(), find=find)
