"""collective_mismatch, rank_diverged, uneven_work: the ranks' ways part in a collective.

One finding, told by its nature: ranks walk the same code, yet meet with other operations or shapes;
a rank makes a collective that the others don't make there, or skips one; a rank ran out of work and
left the loop that the others are in.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.asked_end import asked_by
from lightning_hangcheck.diagnosis.divergence.divergence import LEFT_OUT
from lightning_hangcheck.diagnosis.divergence.pending_collectives import PAIRED, ways_of
from lightning_hangcheck.diagnosis.rules.blame import blame, of_omission
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import helpers_end, who_ends
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.flight import FLIGHT_RECORD
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.source import left_loop, parked_in, rank_conditions, tests_apart
from lightning_hangcheck.reading.waits.torch_waits import COLLECTIVE
from lightning_hangcheck.reading.wording import join, name_ranks, verb, within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lightning_hangcheck.diagnosis.divergence.attribution import Basis
    from lightning_hangcheck.diagnosis.divergence.divergence import Divergence
    from lightning_hangcheck.diagnosis.divergence.pending_collectives import PendingCollective
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import EndedBy
    from lightning_hangcheck.model.naming.slugs import Cause

NO_RECORD = Gap(
    kind="flight_record",
    what=FLIGHT_RECORD,
    rank=None,
    why="none was taken of all ranks: which collective each is in is told from stacks alone",
)
DEFAULT_GROUP = "0"
MOST_SHOWN = 4
TOLD_BY: dict[Basis, str] = {
    "majority": "most ranks do otherwise",
    "messages": "it left out a message that most ranks posted",
    "sequence": "earlier steps followed another sequence of operations",
    "condition": "it is there under a test of the rank",
    "loop": "it has left a loop that the others are in",
    "novelty": "no earlier step had this operation",
    "parked": "the others are where every rank begins its next step",
    "like groups": "all other groups of this kind did otherwise",
    "nothing": "nothing tells which of them departed",
}


def uneven_work(situation: Situation) -> Finding | None:
    """Blame ranks that left the loop, or the job, before the others that still work in it."""
    return _parted(situation, "uneven_work") or _went_home(situation)


def _parted(situation: Situation, cause: Cause) -> Finding | None:
    """Return the finding if the ranks' ways part, and by this cause."""
    job, divergence = situation.job, situation.divergence
    if divergence is None or _nature_of(job, divergence) != cause:
        return None
    if asked := _asked_to_end(divergence):
        return _on_their_way_out(situation, divergence, asked)
    culprits = [job.ranks[rank] for rank in divergence.diverged]
    known = divergence.basis != "nothing"
    confidence = (0.95 if known else 0.6) if divergence.proven else (0.6 if known else 0.4)
    finding = blame(
        culprits,
        cause=cause,
        ended_by=_ended_by(situation, divergence),
        confidence=confidence,
        sentence=_sentence(job, divergence, culprits),
        waited_for=True,
    )
    every = divergence.pending_collectives
    operations = {one.operation.name for one in every}
    if len(operations) == 1 and operations <= PAIRED:
        finding = replace(finding, aspect="messages")
    elif cause == "rank_diverged":
        ways = ways_of(one for one in every if one.rank in divergence.diverged)
        others = ways_of(one for one in every if one.rank not in divergence.diverged)
        finding = of_omission(finding, job.case.code, ways, others)
        first = next(one for one in every if one.rank == divergence.diverged[0])
        if finding.aspect == "made" and _was_earlier(divergence, first):
            finding = _at_parting(divergence, first, finding)
    return replace(
        finding,
        silence_s=min(one.reading.silence_s for one in divergence.pending_collectives),
        pace=None,
        evidence=tuple(_evidence(job, divergence)),
        gaps=() if divergence.proven else (NO_RECORD,),
    )


def _asked_to_end(divergence: Divergence) -> list[RankReading]:
    """Return the ranks that stand in the handler of a signal that asks them to end."""
    pending = [one.reading for one in divergence.pending_collectives]
    tellers = {one.told_by_rank: one for one in pending}  # a hundred thousand ranks have a few
    asked = {rank for rank, one in tellers.items() if one.alive and asked_by(one.view)}
    return [one for one in pending if one.told_by_rank in asked]


def _on_their_way_out(
    situation: Situation, divergence: Divergence, asked: list[RankReading]
) -> Finding:
    """Blame no line of the user's: it is where the signal came, and what was wrong before is gone.

    Ranks that wait in native code answer a signal only once that returns.
    """
    ranks = [one.rank for one in asked]
    first = asked[0]
    wait = first.wait.name if first.wait is not None else "a collective"
    sentence = (
        f"the job was asked to end by {asked_by(first.view)}, and cannot: {name_ranks(ranks)} "
        f"{verb(ranks, 'waits', 'wait')} in {wait} of the signal's handler, to which others do not "
        "come; what was wrong before is not seen"
    )
    found = blame(
        asked,
        cause="rank_diverged",
        ended_by=_ended_by(situation, divergence),
        confidence=0.95 if divergence.proven else 0.6,
        sentence=sentence,
        waited_for=True,
        aspect="asked_to_end",
        evidence=_evidence(situation.job, divergence)[:1],
    )
    return replace(found, place=None, pace=None)


def _ended_by(situation: Situation, divergence: Divergence) -> EndedBy:
    """Say who could end it: nobody, by the record.

    Unless a device that is asked may still work, or a thread of a rank comes to it beside the main
    one.
    """
    pending = [one.reading for one in divergence.pending_collectives]
    if kept := [reading for reading in pending if reading.kept_by_message]:
        return who_ends(situation, kept)
    if (by_helper := helpers_end(situation.job, pending)) is not None:
        return by_helper
    return "nobody" if divergence.proven else "inside"


COLLECTIVE_MISMATCH = Rule(
    cause="collective_mismatch",
    needs=("stacks",),
    find=partial(_parted, cause="collective_mismatch"),
)


RANK_DIVERGED = Rule(
    cause="rank_diverged", needs=("stacks",), find=partial(_parted, cause="rank_diverged")
)


UNEVEN_WORK = Rule(cause="uneven_work", needs=("stacks",), find=uneven_work)


def _nature_of(job: JobReading, divergence: Divergence) -> Cause:
    """Tell the three causes apart.

    A rank that a test of its rank led away diverged, wherever it stands. Where all came the same
    way, they only meet with other operations, shapes or groups. One that has left the loop that the
    others are in ran out of work, as did the others where most have left it.
    """
    if _asked_to_end(divergence):
        return "rank_diverged"
    code = job.case.code
    culprits = set(divergence.diverged)
    waiting = divergence.pending_collectives
    diverged = ways_of(one for one in waiting if one.rank in culprits)
    rest = ways_of(one for one in waiting if one.rank not in culprits)
    everybody = diverged | rest
    sides = (diverged, rest) if rest else tuple({one} for one in diverged)
    if any(tests_apart(code, side, everybody - side) for side in sides):
        return "rank_diverged"
    if divergence.same_way:
        return "collective_mismatch"
    if rest and any(
        all(left_loop(code, stack, other) for stack, other in product(*ways))
        for ways in ((diverged, rest), (rest, diverged))
    ):
        return "uneven_work"
    return "rank_diverged"


def _went_home(situation: Situation) -> Finding | None:
    """Blame ranks that ended well after fewer steps than those that wait for them."""
    gone = [one for one in situation.suspects_that_are("gone") if _ended_well(one)]
    steps = [one.view.beat.step for one in gone if one.view.beat is not None]
    most = max((step for step in steps if step is not None), default=None)
    waiting = situation.job.waiting_in(COLLECTIVE)
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
    return blame(
        gone,
        cause="uneven_work",
        ended_by="nobody",
        confidence=0.9,
        sentence=sentence,
        waited_for=True,
    )


def _ended_well(reading: RankReading) -> bool:
    seen, beat = reading.view.process_exit, reading.view.beat
    well = seen is not None and seen.exit_code == 0
    return well and beat is not None and beat.ending == "finished"


def _group_name(job: JobReading, group: str) -> str:
    """Return what people call a process group; of a mesh many have one name, so with its ranks."""
    if group == DEFAULT_GROUP:
        return "the default group"
    for reading in job.ranks.values():
        flight = reading.view.flight
        for record in flight.groups if flight is not None else ():
            if record.group == group and record.description not in ("", "undefined"):
                members = f" ({name_ranks(record.ranks)})" if record.ranks else ""
                return f"group {record.description}{members}"
    return f"group {group}"


def _sentence(job: JobReading, divergence: Divergence, culprits: list[RankReading]) -> str:
    first = next(one for one in divergence.pending_collectives if one.rank == culprits[0].rank)
    who = [reading.rank for reading in culprits]
    agreed = ""
    if divergence.group is not None and divergence.last_agreed:
        agreed = f"last agreed #{divergence.last_agreed} of {_group_name(job, divergence.group)}:"
    if len(who) == len(divergence.pending_collectives):
        return join(
            f"ranks wait for each other, {agreed or 'nothing tells which departed:'}",
            ", ".join(_what_all_do(job, divergence)),
        )
    tests = rank_conditions(job.case.code, first.way)
    under = f"under {tests[0][2]}" if tests else ""
    left = f"{name_ranks(who)} {verb(who, 'has', 'have')} left the common way, {agreed}".rstrip()
    does = _does(job, divergence, first, [first.rank])
    return join(left if agreed else left.rstrip(",") + ":", does, under)


def _what_all_do(job: JobReading, divergence: Divergence) -> Iterator[str]:
    """Say what the ranks do, those that do the same together; of many such groups the first."""
    alike: dict[str, list[PendingCollective]] = {}
    for one in divergence.pending_collectives:
        alike.setdefault(_does(job, divergence, one, [one.rank]), []).append(one)
    for together in list(alike.values())[:MOST_SHOWN]:
        ranks = [one.rank for one in together]
        yield join(name_ranks(ranks), _does(job, divergence, together[0], ranks))
    left = [one.rank for group in list(alike.values())[MOST_SHOWN:] for one in group]
    if left:
        yield join(name_ranks(left), verb(left, "waits", "wait"), "elsewhere")


def _does(
    job: JobReading, divergence: Divergence, pending: PendingCollective, ranks: Collection[int]
) -> str:
    reading = pending.reading
    wait = reading.wait
    now = wait.name if wait is not None else pending.operation.name
    parked = parked_in(reading.frames)
    place = within(reading.place)
    operation = divergence.operations[pending.rank]
    instead = waits = verb(ranks, "waits", "wait")
    if _was_earlier(divergence, pending):
        known = pending.way != reading.frames
        instead = join("did", str(operation), within(users_place(pending.way)) if known else "")
        instead = f"{instead}, now {waits}"
    if divergence.group is None and pending.group not in (None, DEFAULT_GROUP):
        now = f"{now} of {_group_name(job, str(pending.group))}"
    what = f"{now} ({parked})" if parked else now
    return join(f"{instead} in {what}", f"called {place}" if place else "")


def _at_parting(divergence: Divergence, first: PendingCollective, finding: Finding) -> Finding:
    """Turn a finding to the line where the ways parted: the culprit went on from there.

    Where it made no such operation, as its record proves, that is the line of those who made it.
    """
    if divergence.operations[first.rank] != LEFT_OUT:
        return replace(finding, place=users_place(first.way) or finding.place)
    others = (one for one in divergence.pending_collectives if one.rank not in divergence.diverged)
    made = next((place for one in others if (place := users_place(one.way)) is not None), None)
    return replace(finding, aspect="left_out", test="", place=made or finding.place)


def _was_earlier(divergence: Divergence, pending: PendingCollective) -> bool:
    """Whether a rank parted in another operation than the one in which it waits by now."""
    at = (divergence.group, divergence.seq)
    return divergence.seq is not None and at != pending.numbered


def _evidence(job: JobReading, divergence: Divergence) -> list[EvidenceItem]:
    together: dict[str, list[int]] = {}
    for rank, operation in divergence.operations.items():
        together.setdefault(str(operation), []).append(rank)
    told = ", ".join(f"{name_ranks(ranks)} {name}" for name, ranks in together.items())
    number = f"#{divergence.last_agreed + 1}" if divergence.last_agreed is not None else "now"
    where = _group_name(job, divergence.group) if divergence.group is not None else "collectives"
    items = [EvidenceItem("collective", None, f"{where}, {number}: {told}")]
    who = name_ranks(divergence.diverged)
    items.append(EvidenceItem("departed", None, f"{who}: {TOLD_BY[divergence.basis]}"))
    for one in divergence.pending_collectives[:MOST_SHOWN]:
        for file, line, test in rank_conditions(job.case.code, one.way)[:1]:
            where = f"{file}:{line}" if line else file
            items.append(EvidenceItem("code", one.rank, f"stands under {test} ({where})"))
    return items
