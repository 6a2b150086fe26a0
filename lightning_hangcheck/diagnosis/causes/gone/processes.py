"""process_dead, process_stopped, memory_pressure: a rank's process cannot go on.

It is gone while others still need it, the kernel holds it, or memory is full and it waits for its
own pages to come back from disk.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.process_exit import (
    aspect_of,
    broke_off,
    ended_from_outside,
    failed,
    failed_for,
    first_to_fail,
    how_it_ended,
)
from lightning_hangcheck.diagnosis.rank_reading import RankReading
from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import asks_again, who_ends
from lightning_hangcheck.model.evidence import MemoryUse
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.waits.kernel_targets import asks_anew
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rules.contract import EndedBy
    from lightning_hangcheck.model.evidence import Sample

GIB = 1 << 30
FULL = 0.95
"""Share of the limit from which the kernel takes pages away from the processes themselves."""
LOOPBACK = ("127.", "[::1]:", "::1:", "[::ffff:127.", "::ffff:127.")
"""Addresses of this machine that no other reaches."""
FAULTS_A_SECOND = 50
"""Pages read back each second. A disk with 10 ms a page gives 100; a process whose pages are in
memory needs none."""


def process_dead(situation: Situation) -> Finding | None:
    """Blame the ranks that are gone and waited for; without a wait that is seen, those that failed.

    Or, where all that are left only ask again and again, those that broke off without a fault.
    A rank that a launcher ended because another had failed is no culprit, nor one that lost those
    that had left.
    """
    unasked = _failed(situation) or _broken_off(situation)
    gone = situation.suspects_that_are("gone") if situation.waited_for else unasked
    culprits = [one for one in gone if not _ended_for_others(one, gone)] or list(gone)
    if not culprits or not situation.job.alive:
        return None
    several = situation.job.case.run.nnodes > 1
    first = first_to_fail(culprits, several_nodes=several) or culprits[0]
    sentence = f"{name_ranks([first.rank])} {how_it_ended(first.view)}"
    if len(culprits) > 1:
        others = [one.rank for one in culprits if one is not first]
        sentence += f"; {name_ranks(others)} ended after it"
    if situation.standstill:
        sentence += f"; {_left_standing(situation)}"
    ordered = [first, *(one for one in culprits if one is not first)]
    finding = blame(
        ordered,
        cause="process_dead",
        ended_by=_needed(situation),
        confidence=0.95 if situation.waited_for else 0.7 if situation.standstill else 0.5,
        sentence=sentence,
        waited_for=situation.waited_for,
        aspect=aspect_of(first.view),
    )
    if not situation.standstill:
        return finding
    left = tuple(one.rank for one in situation.suspects)
    return replace(finding, left_standing=left, silence_s=_since_both(finding, situation))


def _ended_for_others(reading: RankReading, gone: Sequence[RankReading]) -> bool:
    """Whether a launcher ended it since another failed, or it failed since another had left."""
    return ended_from_outside(reading.view) or bool(failed_for(reading, gone))


PROCESS_DEAD = Rule(cause="process_dead", needs=("process_exits",), find=process_dead)


def _since_both(finding: Finding, situation: Situation) -> float:
    """Seconds since they are gone and the others stand still, too."""
    return min(finding.silence_s, *(one.silence_s for one in situation.suspects))


def _left_standing(situation: Situation) -> str:
    left = [one.rank for one in situation.suspects]
    place = within(situation.suspects[0].place)
    return join(name_ranks(left), verb(left, "stands", "stand"), "still", place)


def _needed(situation: Situation) -> EndedBy:
    """Say whether anybody but the ranks that are gone could bring what the others wait for.

    Where those that are left stand still in what only the job could end, a part of it is missing;
    likewise where they ask again and again for what does not come. Where they ask for something
    from outside, or sleep once, they may go on by themselves.
    """
    if situation.waited_for:
        return "nobody"
    if not situation.standstill:
        return "unknown_pace"
    if not _failed(situation):
        return "outside"
    left = who_ends(situation, situation.suspects)
    within_job = left in ("nobody", "inside") or all(map(_asks_the_job, situation.suspects))
    return "nobody" if within_job else "inside"


def _asks_the_job(reading: RankReading) -> bool:
    """Whether a rank asks for what the rest of the job should bring, as far as that can be seen.

    It asks again and again and moves no byte, or waits at connections of this machine alone: that
    of the job's store, mostly, which may be kept by a launcher, at which nobody looks.
    """
    own = reading.view.own_process
    if asks_again(reading) and own is not None and asks_anew(own):
        return True
    sockets = [one for one in reading.targets if one.kind == "socket"]
    return bool(sockets) and all(one.name.startswith(LOOPBACK) for one in sockets)


def process_stopped(situation: Situation) -> Finding | None:
    """Blame every rank that is stopped: proven, whoever waits, once it has been so for a while.

    A debugger, or another py-spy, that comes to a rank which has been silent for long stops it for
    moments.
    """
    ranks = situation.job.ranks.values()
    stopped = [reading for reading in ranks if reading.activity == "stopped"]
    if not stopped:
        return None
    who = [reading.rank for reading in stopped]
    seconds = max(map(_stopped_for_s, stopped))
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        "been stopped by a signal or a debugger (kernel state T)",
        within(stopped[0].place),
        f"for {duration(seconds)}",
    )
    waited_for = situation.graph.between_ranks
    finding = blame(
        stopped,
        cause="process_stopped",
        ended_by="person",
        confidence=0.98,
        sentence=sentence,
        waited_for=waited_for,
    )
    return replace(finding, silence_s=min(finding.silence_s, seconds))


def _stopped_for_s(reading: RankReading) -> float:
    """As its watcher saw; else as long as its silence where every sample shows it stopped."""
    if reading.view.stopped_for_s is not None:
        return min(reading.silence_s, reading.view.stopped_for_s)
    own = reading.view.own_process
    samples = [one for one in (own.samples if own is not None else ()) if one.kernel is not None]
    held = list(takewhile(_is_stopped, reversed(samples)))
    if len(held) == len(samples):
        return reading.silence_s
    return min(reading.silence_s, (held[0].taken_ns - held[-1].taken_ns) / NANOSECONDS)


def _is_stopped(sample: Sample) -> bool:
    return sample.kernel is not None and sample.kernel.state in "Tt"


PROCESS_STOPPED = Rule(cause="process_stopped", needs=(), find=process_stopped)


def memory_pressure(situation: Situation) -> Finding | None:
    """Blame the suspects that read pages back while memory is full."""
    found = [
        one
        for reading in situation.suspects_that_are("idle", "busy")
        if (one := _measure(reading)) is not None
    ]
    if not found:
        return None
    readings, first = [one.reading for one in found], found[0]
    who = [reading.rank for reading in readings]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        f"not advanced for {duration(first.reading.silence_s)}",
        f"{within(first.reading.place)}:",
        first.words,
    )
    return blame(
        readings,
        cause="memory_pressure",
        ended_by=who_ends(situation, readings),
        confidence=0.8 if situation.waited_for else 0.5,
        sentence=sentence,
        waited_for=situation.waited_for,
        evidence=[EvidenceItem("kernel", one.reading.rank, one.words) for one in found[:4]],
    )


MEMORY_PRESSURE = Rule(cause="memory_pressure", needs=("kernel",), find=memory_pressure)


def _failed(situation: Situation) -> Sequence[RankReading]:
    ranks = situation.job.ranks.values()
    return [one for one in ranks if one.activity == "gone" and failed(one.view)]


def _broken_off(situation: Situation) -> Sequence[RankReading]:
    """Return the ranks that went without a fault, but neither left their groups nor came to an end.

    os._exit does that. Whoever asks again and again meanwhile may ask for what they were to bring,
    or for something from outside.
    """
    if not situation.standstill or not all(map(asks_again, situation.suspects)):
        return ()
    ranks = situation.job.ranks.values()
    return [one for one in ranks if one.activity == "gone" and broke_off(one.view)]


class _Thrashing(Struct, frozen=True):
    """A rank whose pages come back from disk."""

    reading: RankReading
    faults_a_second: float
    memory: MemoryUse

    @property
    def words(self) -> str:
        """What was measured."""
        share = 100 * self.memory.used_bytes / max(1, self.memory.limit_bytes)
        return (
            f"{share:.0f} % of the {self.memory.scope}'s {self.memory.limit_bytes / GIB:.1f} GiB "
            f"are in use, and {self.faults_a_second:.0f} pages a second come back from disk"
        )


def _measure(reading: RankReading) -> _Thrashing | None:
    own = reading.view.own_process
    samples = [one for one in (own.samples if own is not None else ()) if one.kernel is not None]
    if len(samples) < 2:
        return None
    before, after = samples[-2], samples[-1]
    if before.kernel is None or after.kernel is None or after.kernel.memory is None:
        return None
    seconds = (after.taken_ns - before.taken_ns) / NANOSECONDS
    rate = (after.kernel.major_faults - before.kernel.major_faults) / max(seconds, 0.001)
    memory = after.kernel.memory
    full = memory.used_bytes >= FULL * memory.limit_bytes
    return _Thrashing(reading, rate, memory) if full and rate >= FAULTS_A_SECOND else None
