"""logger_init: a rank creates the experiment logger and does not come back."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within


def find(situation: Situation) -> Finding | None:
    """Blame suspects whose frames, phase or open section say that they create the logger."""
    creating = [
        reading
        for reading in situation.suspects_that_are("idle", "busy", "unseen")
        if reading.wait_kind == "logger" or reading.phase == "logger_init"
    ]
    if not creating:
        return None
    who = [reading.rank for reading in creating]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "been creating the experiment logger",
        within(creating[0].place),
        f"for {duration(max(reading.silence_s for reading in creating))} without coming back",
    )
    seen = creating[0].activity != "unseen"
    return blame(
        creating,
        "logger_init",
        situation.certainty(creating[0].activity),
        0.9 if seen and situation.waited_for else 0.6,
        sentence,
        waited_for=situation.waited_for,
    )


RULE = Rule(cause="logger_init", needs=(), find=find)
