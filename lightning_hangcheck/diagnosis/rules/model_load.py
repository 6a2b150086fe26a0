"""model_load: a rank stands still while it loads the model, and nothing shows why."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within


def find(situation: Situation) -> Finding | None:
    """Blame the idle suspects whose frames, page or section say that they load the model."""
    loading = [one for one in situation.suspects_that_are("idle") if one.phase == "model_load"]
    if not loading:
        return None
    who = [reading.rank for reading in loading]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "stood still while loading the model",
        within(loading[0].place),
        f"for {duration(max(reading.silence_s for reading in loading))} without using the CPU",
    )
    return blame(
        loading,
        "model_load",
        situation.certainty("idle"),
        0.7 if situation.waited_for else 0.4,
        sentence,
        waited_for=situation.waited_for,
    )


RULE = Rule(cause="model_load", needs=("stacks",), find=find)
