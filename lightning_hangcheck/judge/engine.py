"""Asks the rules, from the most specific to the least, and keeps what weighs most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.attribution import minority_of_one
from lightning_hangcheck.judge.causes import RULES
from lightning_hangcheck.judge.causes.gone import find_crash, is_over
from lightning_hangcheck.judge.causes.slow import waits_in_each_step
from lightning_hangcheck.judge.divergence import Divergence, find_divergence
from lightning_hangcheck.judge.exits import gave_up_waiting, how_it_ended
from lightning_hangcheck.judge.graph import WaitGraph, build_graph
from lightning_hangcheck.judge.job import JobReading, read_job
from lightning_hangcheck.judge.left_behind import judge_left
from lightning_hangcheck.judge.operations import (
    PendingCollective,
    awaited_ranks,
    pending_collectives,
)
from lightning_hangcheck.judge.patience import asks_again, decide, waits_its_turn
from lightning_hangcheck.judge.rule import Finding, Situation, blame, names, say
from lightning_hangcheck.judge.threads import free_threads
from lightning_hangcheck.judge.waits import sleeps_on
from lightning_hangcheck.judge.wording import within
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.limits import Limits
from lightning_hangcheck.model.slugs import SEVERITY, VerdictKind
from lightning_hangcheck.model.verdict import CollectiveState, EvidenceItem, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lightning_hangcheck.judge.job import RankReading
    from lightning_hangcheck.judge.log_book import LeftFinding
    from lightning_hangcheck.judge.rule import Need, Rule, Seen
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import GapKind

EVIDENCE: dict[str, Callable[[Situation], Any]] = {
    "situation": lambda situation: situation,
    "job": lambda situation: situation.job,
    "parted": lambda situation: situation.divergence,
    "slowness": lambda situation: situation.job.case.slowness,
    "idle": lambda situation: situation.suspects_that_are("idle"),
    "busy": lambda situation: situation.suspects_that_are("busy"),
    "gone": lambda situation: situation.suspects_that_are("gone"),
    "unheard": lambda situation: situation.suspects_that_are("unheard"),
}
"""What rules may name as their arguments; where one is empty, the rule does not apply."""
NEEDS: dict[Need, tuple[str, Callable[[RankReading], bool]]] = {
    "stacks": ("Python stacks", lambda reading: bool(reading.frames)),
    "kernel": (
        "the kernel's view of processes",
        lambda reading: any(
            one.kernel is not None for look in reading.view.processes for one in look.samples
        ),
    ),
}
"""Evidence that may be missing, what it is called, and whether a rank has it."""
BETWEEN_RANKS = ("collective_mismatch", "rank_diverged", "uneven_work", "rendezvous")
"""Causes that a job of one process cannot have."""
MOST_FACTS = 8
AT_ONCE = Limits(**dict.fromkeys(Limits.__struct_fields__, 0.0))


class Conclusion(Struct, frozen=True, kw_only=True):
    """What the engine came to: the kind of verdict and the finding behind it, if there is one.

    Attributes:
        pending: Where ranks wait in collectives, by rank.
        divergence: Where the ranks' ways part, if they do.
        gaps: Evidence that no rank has, and the causes that were not asked about for that.
        states: Of ranks that are known from files alone.
        collectives: What these files tell of groups.
    """

    kind: VerdictKind
    job: JobReading
    graph: WaitGraph
    pending: Mapping[int, PendingCollective]
    divergence: Divergence | None = None
    finding: Finding | None = None
    gaps: tuple[Gap, ...] = ()
    states: Mapping[int, State] = {}
    collectives: tuple[CollectiveState, ...] = ()


def conclude(case: Case) -> Conclusion:
    """Read a case, draw its graph, and find out what is wrong, if anything is."""
    job = read_job(case)
    if case.left is None:
        return _of_job(job, case)
    found = judge_left(case)
    if (found is None or not found.culprits) and any(view.processes for view in case.ranks):
        by_stacks = _of_job(job, case)
        if by_stacks.finding is not None and by_stacks.finding.culprits:
            return by_stacks
    return _of_files(job, found)


def _of_job(job: JobReading, case: Case) -> Conclusion:
    pending = pending_collectives(job)
    awaited = awaited_ranks(job, pending)
    divergence = find_divergence(job, pending, awaited)
    if is_over(job):
        crash = find_crash(job)
        over = Conclusion(
            kind="finished" if crash is None else "crashed",
            job=job,
            graph=WaitGraph(),
            pending=pending,
            divergence=divergence,
            finding=crash,
        )
        return over if crash is None else _for_whom_it_waited(over, crash)
    graph = build_graph(job, divergence, awaited)
    stuck = () if graph.between_ranks else _stuck_by_themselves(job, graph)
    ends = tuple(job.ranks[rank] for rank in graph.ends) if graph.between_ranks else stuck
    situation = Situation(
        job=job,
        graph=graph,
        suspects=ends if graph.between_ranks else stuck or _long_silent(job, graph),
        waited_for=graph.between_ranks,
        standstill=bool(stuck),
        divergence=divergence if graph.between_ranks else None,
    )
    missing = [need for need in NEEDS if not any(map(NEEDS[need][1], job.ranks.values()))]
    gaps = []  # causes that were not looked for without a kind of evidence
    for need in missing:
        left_out = BETWEEN_RANKS if job.world_size <= 1 else ()
        causes = dict.fromkeys(
            cause
            for one in RULES
            if need in one.needs
            for cause in one.causes
            if cause not in left_out
        )
        why = f"none could be read; without it nobody looked for {', '.join(causes)}"
        kind: GapKind = "stack" if need == "stacks" else "kernel_state"
        gaps.append(Gap(NEEDS[need][0], None, why, kind))
    told = _ask(situation, [one for one in RULES if not set(missing).intersection(one.needs)])
    judged = [(decide(found, case.limits), found) for found in told]
    alarms = [pair for pair in judged if pair[0] in SEVERITY]
    gravest = alarms[0] if alarms else None
    if len(alarms) > 1:  # how many ranks are led to the culprits is a walk through the graph
        gravest = max(
            alarms,
            key=lambda one: (
                SEVERITY[one[0]],
                graph.leading_to((*one[1].culprits, *one[1].left_standing)),
            ),
        )
    if gravest is not None and gravest[1].ended_by == "pace":
        graph = waits_in_each_step(job, gravest[1].culprits)
    elif gravest is not None and situation.standstill:
        gravest = gravest[0], _together(gravest[1], [found for _, found in alarms])
    return Conclusion(
        kind=gravest[0] if gravest is not None else "healthy",
        job=job,
        graph=graph,
        pending=pending,
        divergence=divergence,
        finding=gravest[1] if gravest is not None else None,
        gaps=tuple(gaps),
    )


def _for_whom_it_waited(over: Conclusion, crash: Finding) -> Conclusion:
    """Blame those for whom the first rank that failed only gave up waiting, as they stood then."""
    job = over.job
    gave_up = {rank for rank, one in job.ranks.items() if gave_up_waiting(one.view)}
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


def _of_files(job: JobReading, found: LeftFinding | None) -> Conclusion:
    """Conclude what is left of a job: no process can be asked any more, and no time goes on."""
    states: dict[int, State] = dict.fromkeys(job.ranks, "unseen")
    if found is None:
        return Conclusion(kind="healthy", job=job, graph=WaitGraph(), pending={}, states=states)
    seen = job.ranks.get(found.culprits[0]) if found.culprits else None
    if found.place is None and seen is not None and seen.place is not None:
        stands = f"by its stack, rank {seen.rank} is {within(seen.place)}"
        found = replace(found, place=seen.place, sentence=f"{found.sentence}; {stands}")
    return Conclusion(
        kind=found.kind,
        job=job,
        graph=found.graph,
        pending={},
        finding=replace(found, waited_for=bool(found.graph.waiters)),
        states={**states, **found.states},
        collectives=found.collectives,
    )


def _ask(situation: Situation, rules: Sequence[Rule]) -> Iterator[Finding]:
    """Ask each rule about the suspects that no more specific one explains: each has one cause.

    A rule is not asked where any of the evidence that it names is empty.
    """
    left = situation.suspects
    for one in rules:
        now = replace(situation, suspects=left)
        known = {name: EVIDENCE[name](now) for name in one.evidence}
        found: Finding | None = None
        if all(known.values()) and one.of:
            told = [
                (reading, each)
                for reading in now.suspects_that_are(*one.of)
                if (each := one.find(reading, **known)) is not None
            ]
            found = _of_row(one, now, told) if told else None
        elif all(known.values()):
            found = one.find(**known)
        if found is not None:
            explained = {*found.culprits, *found.left_standing}
            left = tuple(one for one in left if one.rank not in explained)
            yield _of_standstill(found, situation.job) if situation.standstill else found


def _of_row(rule: Rule, situation: Situation, told: Sequence[tuple[RankReading, Seen]]) -> Finding:
    """Blame all suspects of which a row says something; the first one's words are the sentence."""
    readings, first = [reading for reading, _ in told], told[0][1]
    facts = [
        EvidenceItem(kind, reading.rank, text)
        for reading, each in told
        for kind, text in each.evidence
    ]
    alike = [one for one, each in told if each.alike == first.alike]
    sentence = say(alike, first.text, **first.words)
    if others := [one for one, each in told if each.alike != first.alike]:
        sentence += f"; likewise {names(others)}"
    finding = blame(
        situation,
        readings,
        rule.causes[0],
        sentence,
        sure=first.sure or rule.sure,
        ended_by=rule.ended_by,
        aspect=first.aspect,
        evidence=facts[:MOST_FACTS],
    )
    return replace(finding, place=first.place or finding.place)


def _of_standstill(finding: Finding, job: JobReading) -> Finding:
    """A job stands still since the last progress of any rank: before that it only seemed to.

    What nobody but a person could end, or nobody at all, stands for itself. A thread that sleeps
    until a time may answer another rank's call then.
    """
    if finding.ended_by in ("nobody", "person"):
        return replace(finding, standstill=True)
    processes = [own for one in job.alive if (own := one.view.own_process) is not None]
    ended_by = finding.ended_by
    if ended_by == "inside" and any(
        sleeps_on(own) or any(thread.sleeps for thread in free_threads(own)) for own in processes
    ):
        ended_by = "outside"
    silence_s = min([finding.silence_s, *(one.silence_s for one in job.alive)])
    return replace(finding, standstill=True, silence_s=silence_s, ended_by=ended_by)


def _together(gravest: Finding, alarms: Sequence[Finding]) -> Finding:
    """Name all ranks of a standstill, each stuck by itself; the cause is the largest group's."""
    explained = {*gravest.culprits, *gravest.left_standing}
    others = [one for one in alarms if one.culprits and explained.isdisjoint(one.culprits)]
    if not others:
        return gravest
    groups = sorted((gravest, *others), key=lambda one: min(one.culprits))
    return replace(
        gravest,
        culprits=tuple(sorted(rank for one in groups for rank in one.culprits)),
        sentence="; ".join(one.sentence for one in (gravest, *others)),
        phase=groups[0].phase,
        evidence=tuple(item for one in (gravest, *others) for item in one.evidence),
    )


def _stuck_by_themselves(job: JobReading, graph: WaitGraph) -> tuple[RankReading, ...]:
    """Return the ranks that hold a job up in which every rank is stuck and none waits for another.

    Stuck is one that is idle or goes round and round; its children may have been given the same to
    do again and again, but for a DataLoader's. Where any goes round, an idle one may wait for what
    that does not make. Those that only ask again and again, for whatever it is, may wait
    for what the others do not make. Both are victims where there is any other, but for those that
    stand where one of those others stands: a progress bar that ticks in a thread beside it makes a
    deadlock no question.

    None where a rank does anything else, or may on a node that is not seen.
    """
    circling = [
        one
        for one in job.alive
        if one.circling
        and (one.process_activity.activity != "idle" or one.wait_kind == "dataloader")
    ]
    idle = [one for one in job.alive if one.activity == "idle"]
    if len(circling) + len(idle) < len(job.alive) or job.elsewhere:
        return ()
    waiters = set(graph.waiters)
    ends = [one for one in circling or idle if one.rank not in waiters]
    lone = minority_of_one(ends) if not circling else None
    firm = [one for one in ends if not asks_again(one)]
    if len(firm) < len(ends):
        places = {one.frames for one in firm if one.frames}
        firm = [one for one in ends if one.frames in places or not asks_again(one)]
    return (lone,) if lone is not None else tuple(firm or ends)


def _long_silent(job: JobReading, graph: WaitGraph) -> tuple[RankReading, ...]:
    """Ranks to ask about where nobody is proven to wait: silent for the whole stall timeout.

    One that stands elsewhere than all the others is asked alone: where ranks wait for each other in
    code that no frame tells (a copy from the GPU), it is the one that diverged. An idle one for
    which nobody waits, and which ranks that advance may set going, waits for its turn: an evaluator
    for a checkpoint.
    """
    stall_s = job.case.limits.stall_timeout
    advancing = {one.rank for one in job.alive if one.silence_s < stall_s}
    silent = [
        reading
        for reading in job.alive
        if reading.activity in ("idle", "busy", "unseen")
        and reading.silence_s >= stall_s
        and not (advancing and waits_its_turn(job, reading, advancing))
    ]
    lone = minority_of_one(silent) if len(silent) == len(job.alive) else None
    waiters = set(graph.waiters)
    ends = [one for one in silent if one.rank not in waiters]
    return (lone,) if lone is not None else tuple(ends or silent)
