"""process_dead: a rank's process is gone while others still need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.departures import (
    aspect_of,
    ended_from_outside,
    failed,
    first_to_fail,
    how_it_ended,
)
from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import name_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.scene import RankReading


def find(situation: Situation) -> Finding | None:
    """Blame the ranks that are gone and waited for; without a wait that is seen, those that failed.

    A rank that a launcher ended because another had failed is no culprit.
    """
    gone = situation.suspects_that_are("gone") if situation.waited_for else _failed(situation)
    culprits = [one for one in gone if not ended_from_outside(one.view)] or list(gone)
    if not culprits or not situation.scene.alive:
        return None
    first = first_to_fail(culprits) or culprits[0]
    sentence = f"{name_ranks([first.rank])} {how_it_ended(first.view)}"
    if len(culprits) > 1:
        others = [one.rank for one in culprits if one is not first]
        sentence += f"; {name_ranks(others)} ended after it"
    ordered = [first, *(one for one in culprits if one is not first)]
    finding = blame(
        ordered,
        "process_dead",
        "proven" if situation.waited_for else "other",
        0.95 if situation.waited_for else 0.5,
        sentence,
        waited_for=situation.waited_for,
    )
    return replace(finding, aspect=aspect_of(first.view))


def _failed(situation: Situation) -> Sequence[RankReading]:
    ranks = situation.scene.ranks.values()
    return [one for one in ranks if one.activity == "gone" and failed(one.view)]


RULE = Rule(cause="process_dead", needs=("departures",), find=find)
