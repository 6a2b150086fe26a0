"""uneven_work: a rank ran out of work and left the loop that the others are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.finding import Rule, blame
from lightning_hangcheck.diagnosis.rules.parting import parted
from lightning_hangcheck.diagnosis.waits import COLLECTIVE
from lightning_hangcheck.diagnosis.wording import name_ranks

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation
    from lightning_hangcheck.diagnosis.scene import RankReading


def find(situation: Situation) -> Finding | None:
    """Blame ranks that left the loop, or the job, before the others that still work in it."""
    return parted(situation, "uneven_work") or _went_home(situation)


def _went_home(situation: Situation) -> Finding | None:
    """Blame ranks that ended well after fewer steps than those that wait for them."""
    gone = [one for one in situation.suspects_that_are("gone") if _ended_well(one)]
    steps = [one.view.beat.step for one in gone if one.view.beat is not None]
    most = max((step for step in steps if step is not None), default=None)
    waiting = situation.scene.waiting_in(COLLECTIVE)
    others = [one.view.beat.step for one in waiting if one.view.beat is not None]
    if most is None or not situation.waited_for or None in (*steps, *others) or not others:
        return None
    fewest = min(step for step in others if step is not None)
    if most >= fewest:
        return None
    who = [reading.rank for reading in gone]
    sentence = (
        f"{name_ranks(who)} ended after step {most} with exit code 0, and the others are at step "
        f"{fewest} already"
    )
    return blame(gone, "uneven_work", "proven", 0.9, sentence, waited_for=True)


def _ended_well(reading: RankReading) -> bool:
    departure, beat = reading.view.departure, reading.view.beat
    well = departure is not None and departure.exit_code == 0
    return well and beat is not None and beat.ending == "finished"


RULE = Rule(cause="uneven_work", needs=("stacks",), find=find)
