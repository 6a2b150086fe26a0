"""model_load: a rank stands still while it loads the model, and nothing shows why."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.standing_still import blame_standing


def find(situation: Situation) -> Finding | None:
    """Blame the idle suspects whose calls show, or whose open section says, that they load it."""
    loading = [one for one in situation.suspects_that_are("idle") if one.shows("model_load")]
    if not loading:
        return None
    return blame_standing(
        situation,
        loading,
        "model_load",
        situation.certainty("idle"),
        doing="stood still while loading the model",
        manner="without using the CPU",
        confidence=(0.7 if loading[0].seen_by_calls else 0.6) if situation.waited_for else 0.4,
    )


RULE = Rule(cause="model_load", needs=("stacks",), find=find)
