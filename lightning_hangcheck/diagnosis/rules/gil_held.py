"""gil_held: a C call keeps the interpreter lock, so no other thread of the process can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.file_waiting import file_of
from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.scene import RankReading

STALE_S = 2.0
"""The pulse thread runs every 0.5 s; four times that shows that it cannot."""
NANOSECONDS = 1_000_000_000


def find(situation: Situation) -> Finding | None:
    """Blame suspects whose pulse stands still, or that sleep with the interpreter lock in hand."""
    taken_ns = situation.scene.case.taken_ns
    holding = [
        reading
        for reading in situation.suspects_that_are("idle", "busy")
        if _keeps_lock(reading, taken_ns)
    ]
    if not holding:
        return None
    who, first = [reading.rank for reading in holding], holding[0]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        f"kept the interpreter lock for {duration(first.silence_s)}",
        f"{within(first.place)}:",
        "a C call that does not return, while no other thread of the process can run",
    )
    return blame(
        holding,
        "gil_held",
        situation.certainty(first.activity),
        0.9 if situation.waited_for else 0.6,
        sentence,
        waited_for=situation.waited_for,
    )


def _keeps_lock(reading: RankReading, taken_ns: int) -> bool:
    """A thread in Python code gives the lock up when another asks; one in a C call may not.

    A call that waits for a file (safetensors opens files with the lock in hand) has a cause of its
    own, which names the file.
    """
    if file_of(reading) is not None:
        return False
    owners = _owners(reading)
    if len(owners) < 2 or not owners[-1]:
        return False
    beat = reading.view.beat
    if beat is not None and beat.pulse_ns > 0:
        return (taken_ns - beat.pulse_ns) / NANOSECONDS > STALE_S
    return reading.activity == "idle" and owners[-2] == owners[-1]


def _owners(reading: RankReading) -> list[int | None]:
    """The thread that owned the lock, in each sample with stacks; None where nobody did."""
    own = next((look for look in reading.view.processes if look.role == "rank"), None)
    stacks = [
        one.stack for one in (own.samples if own is not None else ()) if one.stack is not None
    ]
    return [
        next((thread.tid for thread in stack.threads if thread.owns_gil), None) for stack in stacks
    ]


RULE = Rule(cause="gil_held", needs=("stacks",), find=find)
