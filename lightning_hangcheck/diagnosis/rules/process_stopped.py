"""process_stopped: the kernel holds a rank's process; nothing it does can go on."""

from __future__ import annotations

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within


def find(situation: Situation) -> Finding | None:
    """Blame every rank that is stopped: proven, whoever waits."""
    ranks = situation.scene.ranks.values()
    stopped = [reading for reading in ranks if reading.activity == "stopped"]
    if not stopped:
        return None
    who = [reading.rank for reading in stopped]
    silence = duration(max(reading.silence_s for reading in stopped))
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "been stopped by a signal or a debugger (kernel state T)",
        within(stopped[0].place),
        f"for {silence}",
    )
    waited_for = situation.graph.between_ranks
    return blame(stopped, "process_stopped", "proven", 0.98, sentence, waited_for=waited_for)


RULE = Rule(cause="process_stopped", needs=(), find=find)
