"""collective_mismatch, rank_diverged, uneven_work: ranks diverge in a collective.

Ranks walk the same code but meet with other operations or shapes; or a rank makes a collective that
the others do not make there, or skips one; or a rank ran out of work and left the loop that the
others are in. A multiprocessing object that ranks share is a meeting place, too. Also
thread_deadlock of several ranks: each keeps a lock that the other's collective needs.
"""

from __future__ import annotations

from itertools import product
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.divergence import (
    LEFT_OUT,
    Divergence,
    find_diverged,
    handles_anew,
    separated_by_test,
    separating_tests,
)
from lightning_hangcheck.judge.exits import asked_by
from lightning_hangcheck.judge.frames import (
    COLLECTIVE,
    calls_collectives,
    had_left,
    left_loop,
    left_out,
    parked_in,
    ran_out,
    users_place,
    waits_for_ranks,
)
from lightning_hangcheck.judge.graph import UNNAMED
from lightning_hangcheck.judge.operations import (
    MAKING_GROUP,
    PAIRED,
    Operation,
    PendingCollective,
    record_of,
    way_in,
    ways_of,
)
from lightning_hangcheck.judge.patience import BY_PATIENCE
from lightning_hangcheck.judge.processes import in_words
from lightning_hangcheck.judge.rule import (
    MOST_SHOWN,
    NO_RECORD,
    Finding,
    Situation,
    blame,
    rule,
    say,
)
from lightning_hangcheck.judge.threads import in_lock, may_help
from lightning_hangcheck.judge.wording import duration, join, name_ranks, verb, within
from lightning_hangcheck.model.verdict import EvidenceItem

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.judge.divergence import Basis
    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.judge.patience import EndedBy
    from lightning_hangcheck.model.case import CodeNote
    from lightning_hangcheck.model.evidence import Frame, ThreadStack
    from lightning_hangcheck.model.slugs import Cause

    Ways = Collection[tuple[Frame, ...]]

DEFAULT_GROUP = "0"
OUT_OF_WORK = "StopIteration"
"""What an iterator without further items raises."""
NOBODY_ANSWERS = {
    frozenset({"recv"}): "; none of them sends",
    frozenset({"send"}): "; none of them receives",
}
TOLD_BY: dict[Basis, str] = {
    "exception": "only this rank handles an exception",
    "majority": "most ranks do otherwise",
    "messages": "it left out a message that most ranks posted",
    "sequence": "earlier steps followed another sequence of operations",
    "condition": "its call is under a test of the rank",
    "loop": "it has left a loop that the others are in",
    "novelty": "no earlier step had this operation",
    "parked": "the others are where their framework has ranks wait for each other",
    "like groups": "all other groups of this kind did otherwise",
    "group": "their group leaves out ranks that wait for another group of this number",
    "nothing": "which of them departed is unknown",
}


@rule("collective_mismatch", "rank_diverged", "uneven_work", order=40, needs=("stacks",))
def diverged_in_collective(situation: Situation, parted: Divergence) -> Finding:
    """Blame the ranks that diverged; the record proves that nobody could end the wait.

    Unless a device may still work, or a helper thread of a rank may still make the call.
    """
    job, every = situation.job, parted.pending_collectives
    pending = [collective.reading for collective in every]
    kept = [reading for reading in pending if reading.kept_by_message]
    helpers_end = situation.patience.helpers_end(pending)
    # no record shows the order in which a device runs operations of several of its streams
    proven = parted.proven and not (parted.reordered and parted.group is None)
    ended_by: EndedBy = "nobody" if proven else "inside"
    ended_by = situation.patience.who_ends(kept) if kept else helpers_end or ended_by
    if any(map(situation.patience.gives_up, pending)):
        ended_by = max("outside", ended_by, key=BY_PATIENCE.index)
    views = {reading.representative: reading.view for reading in pending[::-1] if reading.alive}
    asked = {rank: by for rank, view in views.items() if (by := asked_by(view)) is not None}
    if leaving := [reading for reading in pending if reading.representative in asked]:
        # no line of the user is to blame: the stacks show where the signal came, and what was wrong
        # before is gone; ranks in native code answer a signal only once that returns
        text = (
            "the job was asked to end by {by}, but cannot: {who} [waits|wait] {wait} of the "
            "signal's handler, which the others do not reach; what was wrong before is unknown"
        )
        by, wait = asked[leaving[0].representative], leaving[0].in_wait or "in a collective"
        return blame(
            situation,
            leaving,
            "rank_diverged",
            say(leaving, text, by=by, wait=wait),
            sure=0.95 if parted.proven else 0.6,
            ended_by=ended_by,
            waited_for=True,
            aspect="asked_to_end",
            evidence=_evidence(job, parted)[:1],
            place=None,
            pace=None,
        )
    cause = _nature_of(job, parted)
    known = parted.basis != "nothing" or parted.sends_cross or parted.reordered
    culprits = [job.ranks[rank] for rank in parted.diverged]
    finding = blame(
        situation,
        culprits,
        cause,
        _sentence(job, parted, culprits),
        sure=(0.95 if known else 0.6) if parted.proven else (0.6 if known else 0.4),
        ended_by=ended_by,
        waited_for=True,
        silence_s=min(reading.silence_s for reading in pending),
        pace=None,
        gaps=() if parted.proven else (NO_RECORD,),
    )
    operations = {collective.operation.name for collective in every}
    if len(operations) == 1 and operations <= PAIRED:
        finding = replace(finding, aspect="messages")
    elif parted.made:
        finding = replace(finding, aspect="group")
    elif parted.reordered:
        finding = replace(finding, aspect="order" if parted.group is None else "threads")
    elif cause == "rank_diverged":
        left, stayed = parted.sides
        finding = _of_omission(finding, job.case.code, ways_of(left), ways_of(stayed))
        first = next(collective for collective in left if collective.rank == parted.diverged[0])
        if finding.aspect == "made" and _was_earlier(parted, first):
            # the line where the ways parted, as the culprit went on from there; if its record
            # proves that it made no such operation, the line of the ranks that made it
            made = first.way
            if parted.operations[first.rank] == LEFT_OUT:
                made = next(
                    (collective.way for collective in stayed if users_place(collective.way)), ()
                )
                finding = replace(finding, aspect="left_out", test="")
            finding = replace(finding, place=users_place(made) or finding.place)
    return replace(finding, evidence=tuple(_evidence(job, parted)))


def _of_omission(finding: Finding, code: Sequence[CodeNote], ways: Ways, others: Ways) -> Finding:
    """If the culprits left out a call, make its line the place of the finding."""
    found = [left_out(code, way, other) for way, other in product(ways, others)]
    left = found[0] if found else None
    if left is None or None in found:
        return replace(finding, aspect="made")
    test = f", under {left[1] or 'a test'}"
    return replace(finding, aspect="left_out", place=left[0], test=test)


def _nature_of(job: JobReading, parted: Divergence) -> Cause:
    """Tell the three causes apart.

    If two threads of each rank entered the same operations in another order, no rank left any out.
    A rank test, or an exception that only this rank handles, makes it `rank_diverged`, wherever the
    rank stands; an exception that says there is no more work does not. If all came by the same
    lines, their operations only differ. A rank that has left the loop that the others are in ran
    out of work; so did the others if most have left it. But if these left after as many passes as
    ever, it skipped what follows the loop. And if all had left the loop by the operation before,
    the others are in the next pass, and this rank makes an operation that they do not.
    """
    code = job.case.code
    left, stayed = parted.sides
    if parted.made:
        return "rank_diverged"
    if parted.sends_cross or parted.reordered:
        return "collective_mismatch"
    threw, others_threw = (
        [handles_anew(code, parted.usual, pending) for pending in side] for side in (left, stayed)
    )
    alone = all(threw) and bool(stayed) and not any(others_threw)
    if alone and all(pending.reading.handling.startswith(OUT_OF_WORK) for pending in left):
        return "uneven_work"
    if alone or separated_by_test(code, parted) or _did_more_steps(left, stayed):
        return "rank_diverged"
    if parted.same_way:
        return "collective_mismatch"
    diverged, rest = map(ways_of, parted.sides)
    epochs = {pending.reading.beat.epoch for pending in (*left, *stayed)}
    same_epoch = len(epochs) == 1 and None not in epochs
    early = [(diverged, rest), *([] if parted.due else [(rest, diverged)])]
    if rest and any(
        all(left_loop(code, *pair, same_epoch=same_epoch) for pair in product(*ways))
        and (same_epoch or not _left_together(job, parted, *ways))
        for ways in early
    ):
        return "uneven_work"
    before = [*product(parted.came_from, diverged, rest)]
    if before and all(ran_out(code, *ways) for ways in before):
        return "uneven_work"
    return "rank_diverged"


def _did_more_steps(left: Sequence[PendingCollective], stayed: Sequence[PendingCollective]) -> bool:
    """Whether the first made more steps than the others: who runs out of work makes fewer.

    One step more may be a matter of when a step is counted.
    """
    own, others = ([pending.reading.beat.step for pending in side] for side in (left, stayed))
    fewest = min((-1 if step is None else step for step in own), default=-1)
    most = max((inf if step is None else step for step in others), default=inf)
    return fewest > most + 1


def _left_together(job: JobReading, parted: Divergence, left: Ways, stayed: Ways) -> bool:
    """Whether all ranks had left a loop by their last common operation.

    A rank that was given nothing to do in the next pass is in that pass now, as the others are.
    """
    here, there = ({way_in(way) for way in ways} for ways in (left, stayed))
    before = [*product(parted.came_from, here, there)]
    return bool(before) and all(had_left(job.case.code, *ways) for ways in before)


def _sentence(job: JobReading, parted: Divergence, culprits: list[RankReading]) -> str:
    every = {pending.rank: pending for pending in parted.pending_collectives}
    if parted.made:
        return _of_groups(parted, culprits[0])
    agreed = ""
    if parted.group is not None and parted.last_agreed:
        agreed = f"; they last agreed at #{parted.last_agreed} of {_group_name(job, parted.group)}"
        if parted.reordered:
            agreed += ", and then two threads of each entered the same operations, in another order"
    if len(culprits) == len(every):
        alike: dict[str, list[int]] = {}
        if parted.reordered and parted.group is None:
            for rank, pending in every.items():
                group, place = str(pending.group), within(users_place(pending.way))
                of = "" if group == DEFAULT_GROUP else f"of {_group_name(job, group)},"
                at = join(pending.operation.name, of, f"called {place}" if place else "")
                alike.setdefault(at, []).append(rank)
            places = (f"that of {name_ranks(ranks)} is at {at}" for at, ranks in alike.items())
            return (
                f"GPUs wait for each other: {', '.join([*places][:MOST_SHOWN])}; each rank has "
                "called all of these, in another order"
            )
        for rank, pending in every.items():
            alike.setdefault(_does(job, parted, pending, [rank]), []).append(rank)
        ways = list(alike.values())
        parts = [
            join(name_ranks(ranks), _does(job, parted, every[ranks[0]], ranks))
            for ranks in ways[:MOST_SHOWN]
        ]
        if left := [rank for ranks in ways[MOST_SHOWN:] for rank in ranks]:
            parts.append(join(name_ranks(left), verb(left, "waits", "wait"), "elsewhere"))
        names = frozenset(pending.operation.name for pending in every.values())
        unknown = NOBODY_ANSWERS.get(names, "; which departed is unknown")
        return f"ranks wait for each other: {', '.join(parts)}{agreed or unknown}"
    first, (_, rest) = every[culprits[0].rank], parted.sides
    operation = parted.operations[rest[0].rank]
    ranks = [pending.rank for pending in rest if parted.operations[pending.rank] == operation]
    if parted.group is None:
        ranks = [pending.rank for pending in rest]
        there = verb(ranks, "is not", "are not")
        if operation.name == parted.operations[first.rank].name:  # the same call elsewhere
            there = _does(job, parted, rest[0], ranks)
    elif _was_earlier(parted, rest[0]):
        there = _did(parted, operation)
    else:
        there = f"{verb(ranks, 'is', 'are')} in {_numbered(parted, operation)}"
    tests = separating_tests(job.case.code, parted, first)
    return say(
        culprits,
        "{who} {does} {under} {handling} , while {others} {there}{agreed}",
        does=_does(job, parted, first, parted.diverged),
        under=f"under {tests[0][2]}" if tests else "",
        handling=f"(handling {first.reading.handling})" if first.reading.handling else "",
        others=name_ranks(ranks),
        there=there,
        agreed=agreed,
    )


def _of_groups(parted: Divergence, first: RankReading) -> str:
    makers: dict[tuple[int, ...], list[int]] = {}
    for rank in sorted(parted.made, key=lambda rank: rank not in parted.diverged):
        makers.setdefault(parted.made[rank], []).append(rank)
    calls = [f"{name_ranks(ranks)} for {name_ranks(of)}" for of, ranks in makers.items()]
    return (
        f"{MAKING_GROUP} was called by {', by '.join(calls[:MOST_SHOWN])}, each as group "
        f"{parted.group}: since then the numbers of their groups differ, and all wait in "
        f"{MAKING_GROUP} called {within(first.place)}"
    )


def _does(
    job: JobReading, parted: Divergence, pending: PendingCollective, ranks: Collection[int]
) -> str:
    """Say what ranks do, ``is in barrier #3 called in save (train.py:9)``, and what they did."""
    reading, operation = pending.reading, parted.operations[pending.rank]
    now = reading.wait.name if reading.wait is not None else pending.operation.name
    parked, place = parked_in(reading.frames), within(reading.place)
    called = join(f"({parked})" if parked else "", f"called {place}" if place else "")
    if parted.group is None and pending.group not in (None, DEFAULT_GROUP):
        now = f"{now} of {_group_name(job, str(pending.group))}"
    if _was_earlier(parted, pending):
        where = within(users_place(pending.way)) if pending.way[-1:] != reading.frames[-1:] else ""
        waits = f"and now {verb(ranks, 'waits', 'wait')} in {now}"
        return join(_did(parted, operation), where, waits, called)
    if parted.group is not None:
        now = _numbered(parted, replace(operation, name=now))
    return join(verb(ranks, "is", "are"), f"in {now}", called)


def _did(parted: Divergence, operation: Operation) -> str:
    skipped = operation == LEFT_OUT
    return f"skipped #{parted.seq}" if skipped else f"did {_numbered(parted, operation)}"


def _numbered(parted: Divergence, operation: Operation) -> str:
    """Write ``all_reduce #12 ([4] Float)``: ranks may differ in sizes or types alone."""
    detail = str(operation).removeprefix(operation.name).strip()
    number = f" #{parted.seq}" if parted.seq is not None else ""
    return f"{operation.name}{number}{f' ({detail})' if detail else ''}"


def _was_earlier(parted: Divergence, pending: PendingCollective) -> bool:
    """Whether a rank diverged in an earlier operation than the one it waits in now."""
    return parted.seq is not None and (parted.group, parted.seq) != pending.numbered


def _evidence(job: JobReading, parted: Divergence) -> list[EvidenceItem]:
    together: dict[str, list[int]] = {}
    for rank, operation in parted.operations.items():
        together.setdefault(str(operation), []).append(rank)
    shown = ", ".join(f"{name_ranks(ranks)} {name}" for name, ranks in together.items())
    number = f"#{parted.last_agreed + 1}" if parted.last_agreed is not None else "now"
    where = _group_name(job, parted.group) if parted.group is not None else "collectives"
    items = [EvidenceItem("collective", None, f"{where}, {number}: {shown}")]
    tests = []
    for pending in parted.pending_collectives[:MOST_SHOWN]:
        for file, line, test in separating_tests(job.case.code, parted, pending)[:1]:
            place = f"{file}:{line}" if line else file
            tests.append(EvidenceItem("code", pending.rank, f"its call is under {test} ({place})"))
    # name the basis, unless a test shows it or nobody diverged
    nobody = parted.basis == "nothing" and parted.reordered
    if (parted.basis != "condition" or not tests) and not (parted.sends_cross or nobody):
        who = f"{name_ranks(parted.diverged)}: {TOLD_BY[parted.basis]}"
        items.append(EvidenceItem("departed", None, who))
    return [*items, *tests]


def _group_name(job: JobReading, group: str) -> str:
    """Return the name people use for a process group, with its ranks if others share the name."""
    if group == DEFAULT_GROUP:
        return "the default group"
    for reading in job.ranks.values():
        record = record_of(reading, group)
        if record is not None and record.description not in UNNAMED:
            members = f" ({name_ranks(record.ranks)})" if record.ranks else ""
            return f"group {record.description}{members}"
    return f"group {group}"


@rule("uneven_work", order=20, needs=("stacks",))
def ended_earlier(situation: Situation, gone: Sequence[RankReading]) -> Finding | None:
    """Blame ranks that ended well after fewer steps than those that wait for them."""
    well = [
        reading
        for reading in gone
        if (end := reading.view.process_exit) is not None and end.exit_code == 0
        if reading.beat.ending == "finished"
    ]
    done, left = (
        [beat.step for reading in side if (beat := reading.view.beat) is not None]
        for side in (well, situation.job.waiting_in(COLLECTIVE))
    )
    # if any step is unknown, no rank is known to have made fewer
    last = max((inf if step is None else step for step in done), default=inf)
    step = min((0 if step is None else step for step in left), default=0)
    if not situation.waited_for or last >= step:
        return None
    text = "{who} finished after step {last} (exit code 0), but the others are at step {step}"
    sentence = say(well, text, last=str(last), step=str(step))
    return blame(situation, well, "uneven_work", sentence, sure=0.9, ended_by="nobody")


@rule("rank_diverged", order=60, needs=("stacks", "kernel"))
def missed_meeting(situation: Situation, idle: Sequence[RankReading]) -> Finding | None:
    """Blame ranks that missed a meeting: others wait at a shared object, they in a collective.

    The object is a barrier, event or semaphore given to spawned ranks. A queue's feeder or a timer
    may still bring what is missing, so it is never proven that nobody could.
    """
    there = next((reading for reading in idle if reading.shared_objects), None)
    members = situation.cycle(there) if there is not None else ()
    elsewhere = [reading for reading in members if reading.activity == "waiting"]
    if not elsewhere:
        return None
    meeting = [reading for reading in members if reading.activity == "idle"]
    # ranks outside of collectives are together, whatever part of the object they wait for
    keys = {
        PendingCollective(reading=reading, operation=Operation("meeting"), way=reading.frames): (
            way_in(reading.frames) if reading.activity == "waiting" else "there"
        )
        for reading in (*meeting, *elsewhere)
    }
    diverged, basis = find_diverged(situation.job.case.code, keys)
    culprits = [reading for reading in members if reading.rank in diverged]
    others = [reading for reading in members if reading.rank not in diverged]
    ago = duration(min(reading.silence_s for reading in (*meeting, *elsewhere)))
    they = say(meeting, "{who} [waits|wait] {at} at a semaphore or lock that ranks share")
    rest = say(elsewhere, "{who} [waits|wait] {wait} {at}", wait=elsewhere[0].in_wait)
    if basis == "nothing":
        sentence = f"ranks have waited for each other for {ago}: {they}, {rest}"
    else:
        first, second = (rest, they) if {*diverged} <= {o.rank for o in elsewhere} else (they, rest)
        sentence = f"{first}, while {second}: for {ago} each has waited for the other"
    finding = blame(
        situation,
        culprits,
        "rank_diverged",
        sentence,
        sure=0.4 if basis == "nothing" else 0.8,
        ended_by=situation.patience.who_ends(meeting),
        evidence=[
            EvidenceItem("kernel", reading.rank, f"{reading.waiter} is {in_words(target)}")
            for reading in meeting[:MOST_SHOWN]
            for target in reading.targets[:1]
        ],
        held_up=tuple(reading.rank for reading in others),
    )
    ways = ({reading.frames for reading in side} for side in (culprits, others))
    return _of_omission(finding, situation.job.case.code, *ways)


@rule("thread_deadlock", order=10, needs=("stacks", "kernel"))
def locks_across_ranks(situation: Situation, parted: Divergence) -> Finding | None:
    """Blame ranks that wait in different groups while each has a thread kept out by a lock.

    The call that would end this is made by a thread that needs that very lock: on one rank the
    helper came first, on another the main thread. If all main threads are in collectives, ranks
    diverged.
    """
    if parted.group is not None:
        return None
    job, readings = situation.job, [pending.reading for pending in parted.pending_collectives]
    kept_out = {
        reading.rank: thread
        for reading in readings
        if (thread := _kept_out(job, reading)) is not None
    }
    if len(kept_out) < len(readings) or all(reading.stuck is None for reading in readings):
        return None
    ways = []
    for reading in readings[:MOST_SHOWN]:
        thread, stuck = kept_out[reading.rank], reading.stuck
        here = within(users_place(thread.frames))
        if stuck is not None:
            waits = f"its thread {stuck.label} has, which waits {within(users_place(stuck.frames))}"
            ways.append(f"rank {reading.rank} takes one {here} that {waits}")
        else:
            waits = f"rank {reading.rank} waits {within(reading.place)}"
            ways.append(f"{waits}, and its thread {thread.label} takes one {here}")
    text = (
        "{who} have waited {since} for each other, each with a lock that the other's collective "
        "needs: {ways}"
    )
    since = duration(min(reading.silence_s for reading in readings))
    return blame(
        situation,
        sorted(readings, key=lambda reading: reading.rank),
        "thread_deadlock",
        say(readings, text, since=since, ways="; ".join(ways)),
        sure=0.9 if parted.proven else 0.6,
        ended_by=situation.patience.helpers_end(readings)
        or ("nobody" if parted.proven else "inside"),
        waited_for=True,
        aspect="across_ranks",
    )


def _kept_out(job: JobReading, reading: RankReading) -> ThreadStack | None:
    """Return a rank's thread that takes a lock and makes a collective call after it.

    Also that of a file which another rank keeps.
    """
    stuck, samples = reading.stuck, [moment.sample for moment in reading.own.moments]
    stacks = [sample.stack for sample in samples if sample.stack is not None]
    if not stacks or not stacks[-1].threads:
        return None
    main, *others = stacks[-1].threads
    if stuck is not None:
        return main if in_lock(main) and waits_for_ranks(stuck.frames) else None
    files = {
        thread.tid
        for moment in reading.own.complete[-1:]
        for thread in moment.helpers
        for target in thread.named
        if target.kind == "lock" and any(job.rank_of(reading, holder) for holder in target.holders)
    }
    locked = (
        thread for thread in others if may_help(thread) and (in_lock(thread) or thread.tid in files)
    )
    calling = (thread for thread in locked if calls_collectives(job.case.code, thread.frames))
    return next(calling, None) if waits_for_ranks(main.frames) else None
