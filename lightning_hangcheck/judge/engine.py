"""Asks the rules, from the most specific to the least, and keeps the gravest finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.causes import RULES
from lightning_hangcheck.judge.causes.gone import find_crash, is_over
from lightning_hangcheck.judge.causes.slow import waits_in_each_step
from lightning_hangcheck.judge.divergence import Divergence, find_divergence, minority_of_one
from lightning_hangcheck.judge.exits import gave_up_waiting, how_it_ended
from lightning_hangcheck.judge.graph import WaitGraph, build_graph
from lightning_hangcheck.judge.job import JobReading, read_job
from lightning_hangcheck.judge.operations import (
    PendingCollective,
    awaited_ranks,
    pending_collectives,
)
from lightning_hangcheck.judge.patience import Patience, asks_again, decide
from lightning_hangcheck.judge.postmortem_records import judge_left
from lightning_hangcheck.judge.rule import Finding, Situation, blame, names, say
from lightning_hangcheck.judge.wording import within
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.limits import Limits
from lightning_hangcheck.model.slugs import SEVERITY, VerdictKind
from lightning_hangcheck.model.verdict import CollectiveState, EvidenceItem, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightning_hangcheck.judge.job import RankReading
    from lightning_hangcheck.judge.rule import Need, Rule, Seen
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import GapKind

EVIDENCE: dict[str, Callable[[Situation], Any]] = {
    "situation": lambda situation: situation,
    "job": lambda situation: situation.job,
    "parted": lambda situation: situation.divergence,
    "slowness": lambda situation: situation.job.case.slowness,
    "idle": lambda situation: situation.suspects_that_are("idle"),
    "gone": lambda situation: situation.suspects_that_are("gone"),
    "unheard": lambda situation: situation.suspects_that_are("unheard"),
}
"""What rules may name as their arguments; if one is empty, the rule does not apply."""
NEEDS: dict[Need, tuple[str, GapKind, Callable[[RankReading], bool]]] = {
    "stacks": ("Python stacks", "stack", lambda reading: bool(reading.frames)),
    "kernel": (
        "the kernel's view of processes",
        "kernel_state",
        lambda reading: any(
            sample.kernel is not None for look in reading.view.processes for sample in look.samples
        ),
    ),
}
"""Evidence that may be missing: its name, its kind of gap, and whether a rank has it."""
BETWEEN_RANKS = ("collective_mismatch", "rank_diverged", "uneven_work", "rendezvous")
"""Causes that a job of one process cannot have."""
MOST_FACTS = 8
AT_ONCE = Limits(**dict.fromkeys(Limits.__struct_fields__, 0.0))


class Conclusion(Struct, frozen=True, kw_only=True):
    """The result: kind of verdict, and the finding behind it if there is one.

    Attributes:
        gaps: Evidence that no rank has, with the causes that were therefore not asked about.
        states: States of ranks that are known from files alone; ``collectives`` likewise.
    """

    kind: VerdictKind
    job: JobReading
    graph: WaitGraph = WaitGraph()
    pending: Mapping[int, PendingCollective] = {}
    divergence: Divergence | None = None
    finding: Finding | None = None
    gaps: tuple[Gap, ...] = ()
    states: Mapping[int, State] = {}
    collectives: tuple[CollectiveState, ...] = ()


def conclude(case: Case) -> Conclusion:
    """Read a case, draw its graph, and find out what is wrong, if anything is."""
    job = read_job(case)
    return _of_processes(job) if case.left is None else _of_files(job)


def _of_files(job: JobReading) -> Conclusion:
    """Conclude from files alone: no process can be looked at, and no time passes."""
    found = judge_left(job.case)
    blamed = found.culprits if found is not None else ()
    if not blamed and any(view.processes for view in job.case.ranks):
        by_stacks = _of_processes(job)
        if by_stacks.finding is not None and by_stacks.finding.culprits:
            return by_stacks
    states: dict[int, State] = dict.fromkeys(job.ranks, "unseen")
    if found is None:
        return Conclusion(kind="healthy", job=job, states=states)
    seen = job.ranks.get(blamed[0]) if blamed else None
    if found.place is None and seen is not None and seen.place is not None:
        stands = f"by its stack, rank {seen.rank} is {within(seen.place)}"
        found = replace(found, place=seen.place, sentence=f"{found.sentence}; {stands}")
    return Conclusion(
        kind=found.kind,
        job=job,
        graph=found.graph,
        finding=replace(found, waited_for=bool(found.graph.waiters)),
        states={**states, **found.states},
        collectives=found.collectives,
    )


def _of_processes(job: JobReading) -> Conclusion:
    pending = pending_collectives(job)
    awaited = awaited_ranks(job, pending)
    divergence = find_divergence(job, pending, awaited)
    known = Conclusion(kind="healthy", job=job, pending=pending, divergence=divergence)
    if is_over(job):
        crash = find_crash(job)
        if crash is None:
            return replace(known, kind="finished")
        return _for_whom_it_waited(replace(known, kind="crashed", finding=crash), crash)
    graph = build_graph(job, divergence, awaited)
    patience = Patience(job, graph.circles)
    stuck = () if graph.between_ranks else _stuck_by_themselves(job, graph)
    ends = tuple(job.ranks[rank] for rank in graph.ends)
    situation = Situation(
        job=job,
        graph=graph,
        patience=patience,
        suspects=ends if graph.between_ranks else stuck or _long_silent(job, graph, patience),
        waited_for=graph.between_ranks,
        standstill=bool(stuck),
        divergence=divergence if graph.between_ranks else None,
    )
    missing = [need for need in NEEDS if not any(map(NEEDS[need][2], job.ranks.values()))]
    gaps = []
    for need in missing:
        impossible = BETWEEN_RANKS if job.world_size <= 1 else ()
        asked = (cause for rule in RULES if need in rule.needs for cause in rule.causes)
        causes = ", ".join(dict.fromkeys(cause for cause in asked if cause not in impossible))
        what, missing_kind, _ = NEEDS[need]
        why = f"none could be read; without it nobody looked for {causes}"
        gaps.append(Gap(what, None, why, missing_kind))
    findings = _ask(
        situation, [rule for rule in RULES if not set(missing).intersection(rule.needs)]
    )
    judged = [(decide(found, job.case.limits), found) for found in findings]
    alarms = [pair for pair in judged if pair[0] in SEVERITY]
    known = replace(known, graph=graph, gaps=tuple(gaps))
    if not alarms:
        return known
    kind, finding = alarms[0]
    if len(alarms) > 1:  # counting ranks that lead to the culprits walks the graph
        kind, finding = max(
            alarms,
            key=lambda alarm: (
                SEVERITY[alarm[0]],
                graph.leading_to((*alarm[1].culprits, *alarm[1].held_up)),
            ),
        )
    if finding.ended_by == "pace":
        graph = waits_in_each_step(job, finding.culprits)
    else:
        finding = _together(finding, [found for kind, found in alarms if kind != "slow"])
    return replace(known, kind=kind, graph=graph, finding=finding)


def _for_whom_it_waited(over: Conclusion, crash: Finding) -> Conclusion:
    """If the first failed rank only gave up waiting, blame the ranks that it waited for."""
    job = over.job
    gave_up = {rank for rank, reading in job.ranks.items() if gave_up_waiting(reading.view)}
    if not crash.culprits or not gave_up.issuperset(crash.culprits):
        return over
    views = tuple(
        replace(view, process_exit=None, beat=beat and replace(beat, ending="running"))
        for view in job.case.ranks
        for beat in [view.beat]
    )
    then = replace(job.case, ranks=views, ended=False, exit_code=None, limits=AT_ONCE)
    stood = conclude(then)
    found = stood.finding
    if found is None or stood.kind not in ("hang", "dead") or not found.culprits:
        return over
    if not gave_up.isdisjoint(found.culprits):
        return over
    whom = "it" if len(found.culprits) == 1 else "them"
    first = job.ranks[crash.culprits[0]]
    sentence = (
        f"{found.sentence}; rank {first.rank} waited for {whom} until its time limit, then "
        f"{how_it_ended(first.view)}"
    )
    finding = replace(found, sentence=sentence, silence_s=0.0)
    return replace(over, graph=stood.graph, divergence=stood.divergence, finding=finding)


def _ask(situation: Situation, rules: Sequence[Rule]) -> Iterator[Finding]:
    """Ask each rule about the suspects that no more specific rule explains."""
    left = situation.suspects
    for rule in rules:
        now = replace(situation, suspects=left)
        known = {name: EVIDENCE[name](now) for name in rule.evidence}
        if not all(known.values()):
            continue
        found: Finding | None = None
        if rule.of:
            asked = ((each, rule.find(each, **known)) for each in now.suspects_that_are(*rule.of))
            answers = [(reading, seen) for reading, seen in asked if seen is not None]
            found = _of_row(rule, now, answers) if answers else None
        else:
            found = rule.find(**known)
        if found is not None:
            explained = {*found.culprits, *found.held_up}
            left = tuple(reading for reading in left if reading.rank not in explained)
            yield _of_standstill(found, situation.job) if situation.standstill else found


def _of_row(
    rule: Rule, situation: Situation, answers: Sequence[tuple[RankReading, Seen]]
) -> Finding:
    """Blame all suspects to which a row applies; the sentence comes from the first."""
    first = answers[0][1]
    alike = [reading for reading, each in answers if each.alike == first.alike]
    sentence = say(alike, first.text, **first.words)
    if others := [reading for reading, each in answers if each.alike != first.alike]:
        sentence += f"; likewise {names(others)}"
    facts = [
        EvidenceItem(kind, o.rank, text) for o, each in answers for kind, text in each.evidence
    ]
    blamed = [reading.rank for reading, _ in answers]
    members = [o.rank for reading, _ in answers for o in situation.deadlocked(reading)]
    finding = blame(
        situation,
        [reading for reading, _ in answers],
        rule.causes[0],
        sentence,
        sure=first.sure or rule.sure,
        ended_by=next((each.ended_by for _, each in answers if each.ended_by), rule.ended_by),
        aspect=first.aspect,
        evidence=facts[:MOST_FACTS],
        culprits=tuple(dict.fromkeys((*blamed, *members))),
    )
    return replace(finding, place=first.place or finding.place)


def _of_standstill(finding: Finding, job: JobReading) -> Finding:
    """The silence of a standstill counts from the last progress of any rank.

    A finding that nobody or a person could end stands by itself. A sleeping thread may yet answer
    another rank's call.
    """
    if finding.ended_by in ("nobody", "person"):
        return replace(finding, standstill=True)
    processes = [reading.own for reading in job.alive]
    ended_by = finding.ended_by
    if ended_by == "inside" and any(
        own.sleeps_on or any(thread.sleeps for thread in own.free_threads) for own in processes
    ):
        ended_by = "outside"
    silence_s = min([finding.silence_s, *(reading.silence_s for reading in job.alive)])
    return replace(finding, standstill=True, silence_s=silence_s, ended_by=ended_by)


def _together(gravest: Finding, alarms: Sequence[Finding]) -> Finding:
    """Name all ranks that are stuck, each by itself; the gravest finding gives the cause."""
    explained = {*gravest.culprits, *gravest.held_up}
    others = [
        finding for finding in alarms if finding.culprits and explained.isdisjoint(finding.culprits)
    ]
    if not others:
        return gravest
    groups = (gravest, *others)
    return replace(
        gravest,
        culprits=tuple(sorted(rank for finding in groups for rank in finding.culprits)),
        sentence="; ".join(finding.sentence for finding in groups),
        phase=min(groups, key=lambda finding: min(finding.culprits)).phase,
        evidence=tuple(item for finding in groups for item in finding.evidence),
    )


def _stuck_by_themselves(job: JobReading, graph: WaitGraph) -> tuple[RankReading, ...]:
    """Return the ranks that hold up a job in which all are stuck and none waits for another.

    A rank is stuck if it is idle or goes round a loop. An idle rank may wait for what a looping
    rank does not make; a rank that only retries may wait for what any other does not do. Both are
    victims then, unless they are at the same place as a rank that is firmly stuck. Empty if any
    rank does something else, or may do so on a node that is not seen.
    """
    circling = [
        reading
        for reading in job.alive
        if reading.circling
        and (reading.process_activity.activity != "idle" or reading.wait_kind == "dataloader")
    ]
    idle = [reading for reading in job.alive if reading.activity == "idle"]
    if len(circling) + len(idle) < len(job.alive) or job.elsewhere:
        return ()
    waiters = set(graph.waiters)
    ends = [reading for reading in circling or idle if reading.rank not in waiters]
    lone = _departed(ends) if not circling else None
    if lone is not None:
        return (lone,)
    retrying = (each for each in ends if asks_again(each) and not each.own.sleeps_on)
    asking = {reading.rank for reading in retrying}
    places = {reading.frames for reading in ends if reading.rank not in asking and reading.frames}
    firm = [reading for reading in ends if reading.rank not in asking or reading.frames in places]
    return tuple(firm or ends)


def _departed(readings: Sequence[RankReading]) -> RankReading | None:
    """Return the one rank that stands elsewhere than all others.

    None if it only asks again and again, perhaps for what the others should bring: each of them
    waits for something known.
    """
    lone = minority_of_one(readings)
    others = [reading for reading in readings if reading is not lone]
    stuck = all(reading.targets or reading.own.waits_in_vain for reading in others)
    return None if lone is not None and asks_again(lone) and stuck else lone


def _long_silent(job: JobReading, graph: WaitGraph, patience: Patience) -> tuple[RankReading, ...]:
    """Return ranks that were silent for the whole stall timeout, if no wait between ranks shows.

    A rank that stands elsewhere than all others is returned alone: it diverged, where ranks wait in
    code that no frame identifies. An idle rank that advancing ranks may still serve waits its turn.
    """
    stall_s = job.case.limits.stall_timeout
    advancing = {reading.rank for reading in job.alive if reading.silence_s < stall_s}
    silent = [
        reading
        for reading in job.alive
        if reading.activity in ("idle", "busy", "unseen")
        and reading.silence_s >= stall_s
        and not (advancing and patience.waits_its_turn(reading, advancing))
    ]
    lone = _departed(silent) if len(silent) == len(job.alive) else None
    waiters = set(graph.waiters)
    ends = [reading for reading in silent if reading.rank not in waiters]
    return (lone,) if lone is not None else tuple(ends or silent)
