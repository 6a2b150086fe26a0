"""rank_stalled: a rank stands still in its own code, and nothing more specific is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.targets import in_words
from lightning_hangcheck.diagnosis.wording import (
    duration,
    join,
    name_ranks,
    process_name,
    verb,
    within,
)
from lightning_hangcheck.model.verdict import EvidenceItem

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.scene import RankReading


def find(situation: Situation) -> Finding | None:
    """Blame the suspects that are idle.

    Proven where the first of them and a child of it wait for each other.
    """
    idle = situation.suspects_that_are("idle")
    if not idle:
        return None
    who, first = [reading.rank for reading in idle], idle[0]
    aspect, words = _waits(first)
    deadlocked = aspect == "child" and situation.deadlocked(first) == (first,)
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "stood still",
        within(first.place),
        f"for {duration(max(reading.silence_s for reading in idle))} without using the CPU{words}",
        "that waits for it at the other end of a pipe" if deadlocked else "",
    )
    finding = blame(
        idle,
        "rank_stalled",
        "proven" if deadlocked and len(idle) == 1 else situation.certainty("idle"),
        0.85 if situation.waited_for else 0.5,
        sentence,
        waited_for=situation.waited_for,
    )
    evidence = (
        EvidenceItem("kernel", reading.rank, f"main thread is {in_words(target)}")
        for reading in idle
        for target in reading.targets[:1]
    )
    return replace(finding, aspect=aspect, evidence=tuple(evidence))


def _waits(reading: RankReading) -> tuple[str | None, str]:
    """Return what the rank waits for: an aspect of the cause, and words."""
    for target in reading.targets:
        if target.kind == "process":
            child = ", ".join(map(process_name, target.holders)) or f"pid {target.name}"
            return "child", f", waiting for the end of its child {child}"
        if target.kind == "terminal" or (target.kind == "pipe" and target.call == "read"):
            others = [one for one in target.holders if one.pid != reading.view.pid]
            if others:
                return "child", f", reading what {process_name(others[0])} does not write"
            return "input", f", reading input from {target.name} that nobody gives it"
    return None, ""


RULE = Rule(cause="rank_stalled", needs=("stacks",), find=find)
