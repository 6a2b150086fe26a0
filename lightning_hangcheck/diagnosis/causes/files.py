"""file_lock, filesystem_wait, checkpoint_io: a rank waits for a file, or for the lock on one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import who_ends
from lightning_hangcheck.model.evidence import PAGE_FAULT
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.wording import (
    duration,
    join,
    name_ranks,
    process_name,
    verb,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.evidence import WaitTarget
    from lightning_hangcheck.model.naming.slugs import Cause

NOBODY = (
    "which no process on this machine is seen to hold: a stale lock file, or a lock of another host"
)

ABANDONED = "whose maker is gone: nobody is left to release it"


def file_lock(situation: Situation) -> Finding | None:
    """Blame the ranks of the cycle that a lock closes; without one, all that wait for any lock."""
    for reading in situation.suspects_that_are("idle"):
        lock = _lock_of(reading)
        if lock is not None:
            return _blame_for_lock(situation, reading, lock)
    return None


FILE_LOCK = Rule(cause="file_lock", needs=("kernel",), find=file_lock)


def filesystem_wait(situation: Situation) -> Finding | None:
    """Blame the suspects whose system call waits for a file."""
    waiting = _blocked(situation)
    return _blame_for_file(situation, waiting, "filesystem_wait", "") if waiting else None


FILESYSTEM_WAIT = Rule(cause="filesystem_wait", needs=("kernel",), find=filesystem_wait)


def checkpoint_io(situation: Situation) -> Finding | None:
    """Blame the suspects that save a checkpoint and are blocked in a file."""
    saving = [one for one in _blocked(situation) if one.phase == "checkpoint_save"]
    if not saving:
        return None
    return _blame_for_file(situation, saving, "checkpoint_io", "while saving a checkpoint")


CHECKPOINT_IO = Rule(cause="checkpoint_io", needs=("kernel",), find=checkpoint_io)


def file_of(reading: RankReading) -> WaitTarget | None:
    """Return the file that a rank waits for."""
    return next((one for one in reading.targets if one.kind in ("file", "fifo")), None)


def _blame_for_lock(situation: Situation, waiter: RankReading, lock: WaitTarget) -> Finding:
    proven = situation.deadlocked(waiter)
    cycle = proven or situation.cycle(waiter)
    together = cycle or [one for one in situation.suspects_that_are("idle") if _lock_of(one)]
    file = _locked_file(situation, waiter)
    same = [
        one.rank
        for one in together
        if one is waiter or (file and _locked_file(situation, one) == file)
    ]
    who = [waiter.rank] if cycle else same
    at_it = set(same)
    others = [one.rank for one in together if one.rank not in at_it]
    sentence = join(
        name_ranks(who),
        f"{verb(who, 'has', 'have')} waited {duration(waiter.silence_s)}",
        within(waiter.place),
        f"for the lock on {lock.name or 'a file'},",
        _who_holds(situation, waiter, lock),
    )
    if others and not cycle:
        sentence += f"; {name_ranks(others)} {verb(others, 'waits', 'wait')} for another lock"
    finding = blame(
        together,
        cause="file_lock",
        ended_by=who_ends(situation, together),
        confidence=0.95 if proven else 0.8 if situation.waited_for else 0.5,
        sentence=sentence,
        waited_for=situation.waited_for,
    )
    return replace(
        finding,
        silence_s=_silence(situation, waiter, proven),
        place=waiter.place,
        aspect="held" if lock.holders else "stale",
        evidence=_evidence(waiter, lock),
    )


def _lock_of(reading: RankReading) -> WaitTarget | None:
    return next((one for one in reading.targets if one.kind == "lock"), None)


def _locked_file(situation: Situation, reading: RankReading) -> str:
    """Return the file whose lock a rank waits for; a lock without a name is one rank's alone."""
    lock, processes = _lock_of(reading), situation.job.processes
    named = lock is not None and bool(lock.name)
    return processes.file_node(reading.view.host, lock) if named and lock is not None else ""


def _silence(situation: Situation, waiter: RankReading, proven: Sequence[RankReading]) -> float:
    """A proof is as old as the last step into the cycle, unless mere idleness is long enough."""
    if proven and waiter.silence_s < situation.job.case.limits.idle_after:
        return min(one.silence_s for one in proven)
    return waiter.silence_s


def _who_holds(situation: Situation, waiter: RankReading, lock: WaitTarget) -> str:
    if not lock.holders:
        return ABANDONED if lock.abandoned else NOBODY
    holder = lock.holders[0]
    reading = situation.job.rank_of(waiter, holder)
    if reading is None:
        return f"which {process_name(holder)}, a process outside the job, holds"
    if reading is waiter:
        return "which it holds itself"
    wait = reading.wait
    doing = f"while it waits in {wait.name}" if wait is not None else ""
    return join(f"which rank {reading.rank} holds", doing, within(reading.place))


def _evidence(waiter: RankReading, lock: WaitTarget) -> tuple[EvidenceItem, ...]:
    polls = {
        "filelock": "polls for",
        "baton.wait": "polls for",
        "exists": "polls for",
        "sleep": "sleeps again and again, as pollers do, for",
    }
    how = polls.get(lock.call, f"is in {lock.call} for")
    nobody = "a process that is gone" if lock.abandoned else "nobody that is seen"
    held = ", ".join(process_name(holder) for holder in lock.holders) or nobody
    text = f"{waiter.waiter} {how} the lock on {lock.name or 'a file'}, held by {held}"
    return (EvidenceItem("kernel", waiter.rank, text),)


def _blocked(situation: Situation) -> list[RankReading]:
    """Return suspects that are blocked in a file's input or output."""
    return [one for one in situation.suspects_that_are("idle") if file_of(one) is not None]


def _blame_for_file(
    situation: Situation, waiting: Sequence[RankReading], cause: Cause, doing: str
) -> Finding:
    """Blame ranks that are blocked in files.

    Args:
        situation: At hand.
        waiting: At least one, of `_blocked`.
        cause: Slug.
        doing: What for, or nothing.
    """
    first = waiting[0]
    file = file_of(first)
    sentence = join(
        name_ranks(one.rank for one in waiting),
        f"{'has' if len(waiting) == 1 else 'have'} been blocked {duration(first.silence_s)}",
        _file_in_words(file) if file is not None else "",
        doing,
        within(first.place),
    )
    return blame(
        waiting,
        cause=cause,
        ended_by=who_ends(situation, waiting),
        confidence=0.85 if situation.waited_for else 0.5,
        sentence=sentence,
        waited_for=situation.waited_for,
        aspect=file.kind if file is not None else None,
        evidence=[_waiting_evidence(one) for one in waiting[:4]],
    )


EMPTY, FULL = "which is empty", "which is full"
STATE_OF_FIFO = {"read": EMPTY, "readv": EMPTY, "write": FULL, "writev": FULL}
"""Who stands in these has found somebody at the other end: else they would return at once."""


def _file_in_words(file: WaitTarget) -> str:
    if file.call == PAGE_FAULT:
        return "reading a page of a file that is mapped into its memory"
    name = file.name or "a file"
    if file.kind == "fifo":
        end = STATE_OF_FIFO.get(file.call, "whose other end nobody serves")
        return f"in {file.call} of the FIFO {name}, {end},"
    return f"in {file.call} of {name}"


def _waiting_evidence(reading: RankReading) -> EvidenceItem:
    file = file_of(reading)
    what = f"{reading.waiter} is blocked {_file_in_words(file)}" if file is not None else ""
    return EvidenceItem("kernel", reading.rank, what)
