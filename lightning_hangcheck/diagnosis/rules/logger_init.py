"""logger_init: a rank creates the experiment logger and does not come back."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.standing_still import blame_standing


def find(situation: Situation) -> Finding | None:
    """Blame suspects whose frames, phase or open section say that they create the logger."""
    creating = [
        reading
        for reading in situation.suspects_that_are("idle", "busy", "unseen")
        if reading.wait_kind == "logger" or reading.phase == "logger_init"
    ]
    if not creating:
        return None
    seen = creating[0].activity != "unseen"
    return blame_standing(
        situation,
        creating,
        "logger_init",
        situation.certainty(creating[0].activity),
        doing="been creating the experiment logger",
        manner="without coming back",
        confidence=0.9 if seen and situation.waited_for else 0.6,
    )


RULE = Rule(cause="logger_init", needs=(), find=find)
