"""process_dead, of a child: a rank waits for what a process was to bring that it started.

multiprocessing tells nobody that a process has died: a queue, an event or a semaphore that it was
to fill, set or release is waited for as before. The parent has not asked how it ended, else the
kernel would have forgotten it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import who_ends
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.exit_codes import signal_name
from lightning_hangcheck.reading.waits.kernel_targets import steady_targets
from lightning_hangcheck.reading.waits.wait_chain import may_help
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import EndedBy

FROM_PROCESSES = ("pipe", "shared")
"""Waits that only processes end, of those that multiprocessing starts."""


class _Lost(NamedTuple):
    """A rank, and the child that failed before it could bring what the rank waits for."""

    reading: RankReading
    pid: int
    exit_code: int

    @property
    def words(self) -> str:
        """How the child ended."""
        code = self.exit_code
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return f"its child pid {self.pid} {how}, and the rank has not asked for that"


def lost_child(situation: Situation) -> Finding | None:
    """Blame the suspects that wait for what only processes bring, after a child of theirs failed.

    Not those that something from outside could help on, or a process that works. A thread of the
    rank that looks now and then may start the child anew.
    """
    lost = [
        found
        for reading in situation.suspects_that_are("idle")
        if (found := _lost(reading)) is not None
        and who_ends(situation, [reading]) in ("nobody", "inside")
    ]
    if not lost:
        return None
    readings, first = [one.reading for one in lost], lost[0]
    who = [reading.rank for reading in readings]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        f"waited {duration(first.reading.silence_s)}",
        f"{within(first.reading.place)} for what a process was to bring:",
        first.words,
    )
    return blame(
        readings,
        cause="process_dead",
        ended_by=_ended_by(readings),
        confidence=0.85 if situation.waited_for else 0.6,
        sentence=sentence,
        waited_for=situation.waited_for,
        aspect="child_killed" if first.exit_code < 0 else "child_raised",
        evidence=[EvidenceItem("kernel", one.reading.rank, one.words) for one in lost],
    )


LOST_CHILD = Rule(cause="process_dead", needs=(), find=lost_child)


def _lost(reading: RankReading) -> _Lost | None:
    if not any(target.kind in FROM_PROCESSES for target in reading.own_targets):
        return None
    for look in reading.view.processes:
        state = look.samples[-1].kernel if look.samples else None
        if look.role != "rank" and state is not None and state.exit_code:
            return _Lost(reading, look.pid, state.exit_code)
    return None


def _ended_by(readings: Sequence[RankReading]) -> EndedBy:
    """Nobody, where the rank has no other thread and the children that are left wait for it."""
    if not all(map(_is_alone, readings)):
        return "outside"
    return "nobody" if all(map(_awaited_by_those_left, readings)) else "inside"


def _is_alone(reading: RankReading) -> bool:
    own = reading.view.own_process
    stack = own.samples[-1].stack if own is not None and own.samples else None
    return stack is not None and not any(map(may_help, stack.threads[1:]))


def _awaited_by_those_left(reading: RankReading) -> bool:
    """Whether all that could still bring it wait likewise, for the rank or for each other."""
    family = {one.pid: steady_targets(one) for one in reading.view.processes}
    left = {holder.pid for target in reading.own_targets for holder in target.holders}
    left.discard(reading.view.pid or 0)
    return all(
        family.get(pid)
        and all(one.kind in FROM_PROCESSES for one in family[pid])
        and family.keys() >= {holder.pid for one in family[pid] for holder in one.holders}
        for pid in left
    )
