"""file_lock: a rank waits for a lock on a file, and whoever holds it does not let go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.finding import Finding, Rule, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, process_name, within
from lightning_hangcheck.model.verdict import EvidenceItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.scene import RankReading
    from lightning_hangcheck.model.evidence import WaitTarget

NOBODY = (
    "which no process on this machine is seen to hold: a stale lock file, or a lock of another host"
)


def find(situation: Situation) -> Finding | None:
    """Blame the ranks of the circle that a lock closes; without one, the rank that waits for it."""
    for reading in situation.suspects_that_are("idle"):
        for target in reading.targets:
            if target.kind == "lock":
                return _blame(situation, reading, target)
    return None


def _blame(situation: Situation, waiter: RankReading, lock: WaitTarget) -> Finding:
    proven = situation.deadlocked(waiter)
    circle = proven or situation.circle(waiter)
    sentence = join(
        name_ranks([waiter.rank]),
        f"has waited {duration(waiter.silence_s)}",
        within(waiter.place),
        f"for the lock on {lock.name or 'a file'},",
        _who_holds(situation, waiter, lock),
    )
    finding = blame(
        circle or [waiter],
        "file_lock",
        "proven" if proven else situation.certainty("idle"),
        0.95 if proven else 0.8 if situation.waited_for else 0.5,
        sentence,
        waited_for=situation.waited_for,
    )
    return replace(
        finding,
        silence_s=_silence(situation, waiter, proven),
        place=waiter.place,
        aspect="held" if lock.holders else "stale",
        evidence=_evidence(waiter, lock),
    )


def _silence(situation: Situation, waiter: RankReading, proven: Sequence[RankReading]) -> float:
    """A proof is as old as the last step into the circle, unless mere idleness is long enough."""
    if proven and waiter.silence_s < situation.scene.case.limits.idle_after:
        return min(one.silence_s for one in proven)
    return waiter.silence_s


def _who_holds(situation: Situation, waiter: RankReading, lock: WaitTarget) -> str:
    if not lock.holders:
        return NOBODY
    holder = lock.holders[0]
    reading = situation.scene.rank_of(holder.pid)
    if reading is None:
        return f"which {process_name(holder)}, a process outside the job, holds"
    if reading is waiter:
        return "which it holds itself"
    wait = reading.doing.wait
    doing = f"while it waits in {wait.name}" if wait is not None else ""
    return join(f"which rank {reading.rank} holds", doing, within(reading.place))


def _evidence(waiter: RankReading, lock: WaitTarget) -> tuple[EvidenceItem, ...]:
    polls = {"filelock": "polls for", "sleep": "sleeps again and again, as pollers do, for"}
    how = polls.get(lock.call, f"is in {lock.call} for")
    held = ", ".join(process_name(holder) for holder in lock.holders) or "nobody that is seen"
    text = f"main thread {how} the lock on {lock.name or 'a file'}, held by {held}"
    return (EvidenceItem("kernel", waiter.rank, text),)


RULE = Rule(cause="file_lock", needs=("kernel",), find=find)
