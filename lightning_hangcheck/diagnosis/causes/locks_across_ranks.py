"""thread_deadlock, of several ranks: each keeps a lock while it waits in a collective.

The call that would end this is made by a thread that takes that very lock: on one rank the helper
came first, on another one the main thread. All walk the same code; only the order differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Rule
from lightning_hangcheck.diagnosis.rules.who_ends import helpers_end
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.source import calls_collectives
from lightning_hangcheck.reading.waits.torch_waits import waits_for_ranks
from lightning_hangcheck.reading.waits.wait_chain import in_lock, may_help
from lightning_hangcheck.reading.wording import duration, join, name_ranks, within

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import Finding, Situation
    from lightning_hangcheck.model.evidence import ThreadStack

MOST_SHOWN = 4


def locks_across_ranks(situation: Situation) -> Finding | None:
    """Blame ranks that wait in different groups, each with a thread kept out by a lock.

    On at least one it is the main thread: where all of these are in collectives, they parted.
    """
    parted = situation.divergence
    if parted is None or parted.group is not None:
        return None
    job, readings = situation.job, [one.reading for one in parted.pending_collectives]
    kept_out = {one.rank: thread for one in readings if (thread := _kept_out(job, one)) is not None}
    of_main = any(one.rank_activity.stuck is not None for one in readings)
    if len(kept_out) < len(readings) or not of_main:
        return None
    ended_by = helpers_end(job, readings) or ("nobody" if parted.proven else "inside")
    who = [one.rank for one in readings]
    shown = [_in_words(one, kept_out[one.rank]) for one in readings[:MOST_SHOWN]]
    return blame(
        sorted(readings, key=lambda one: one.rank),
        cause="thread_deadlock",
        ended_by=ended_by,
        confidence=0.9 if parted.proven else 0.6,
        sentence=join(
            name_ranks(who),
            f"have waited {duration(min(one.silence_s for one in readings))} for each other, each",
            "with a lock in hand that the other's collective needs:",
            "; ".join(shown),
        ),
        waited_for=True,
        aspect="across_ranks",
    )


LOCKS_ACROSS_RANKS = Rule(
    cause="thread_deadlock", needs=("stacks", "kernel"), find=locks_across_ranks
)


def _kept_out(job: JobReading, reading: RankReading) -> ThreadStack | None:
    """Return the thread of a rank that takes a lock and makes a collective call after it.

    That of its main thread, whose wait leads to a thread in a collective, needs no such proof.
    """
    own, stuck = reading.view.own_process, reading.rank_activity.stuck
    stacks = [one.stack for one in own.samples if one.stack is not None] if own is not None else []
    if not stacks or not stacks[-1].threads:
        return None
    main, *others = stacks[-1].threads
    if stuck is not None:
        return main if in_lock(main) and waits_for_ranks(stuck.frames) else None
    locked = (one for one in others if may_help(one) and in_lock(one))
    calling = (one for one in locked if calls_collectives(job.case.code, one.frames))
    return next(calling, None) if waits_for_ranks(main.frames) else None


def _in_words(reading: RankReading, thread: ThreadStack) -> str:
    here, stuck = within(users_place(thread.frames)), reading.rank_activity.stuck
    if stuck is not None:
        waits = f"its thread {stuck.label} has, which waits {within(users_place(stuck.frames))}"
        return f"rank {reading.rank} takes one {here} that {waits}"
    waits = f"rank {reading.rank} waits {within(reading.place)}"
    return f"{waits}, and its thread {thread.label} takes one {here}"
