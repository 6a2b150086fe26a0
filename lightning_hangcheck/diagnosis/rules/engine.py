"""Runs the rules, from the most specific to the least, and keeps what weighs most."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.causes import (
    collectives,
    dataloader_worker,
    fallback,
    files,
    locks_across_ranks,
    own_code,
    shared_objects,
    slow,
    threads,
)
from lightning_hangcheck.diagnosis.causes.gone import lost_child, processes
from lightning_hangcheck.diagnosis.causes.gone.crash import find_crash, is_over
from lightning_hangcheck.diagnosis.causes.remote import network, rendezvous, silent_node
from lightning_hangcheck.diagnosis.divergence.attribution import minority_of_one
from lightning_hangcheck.diagnosis.divergence.awaited_ranks import awaited_ranks
from lightning_hangcheck.diagnosis.divergence.divergence import Divergence, find_divergence
from lightning_hangcheck.diagnosis.divergence.pending_collectives import (
    PendingCollective,
    pending_collectives,
)
from lightning_hangcheck.diagnosis.graph.wait_graph import WaitGraph, build_graph
from lightning_hangcheck.diagnosis.job import JobReading, read_job
from lightning_hangcheck.diagnosis.rules.contract import Finding, Situation, Skipped
from lightning_hangcheck.diagnosis.rules.patience import decide
from lightning_hangcheck.diagnosis.rules.who_ends import asks_again, waits_its_turn
from lightning_hangcheck.model.naming.slugs import SEVERITY, VerdictKind
from lightning_hangcheck.reading.waits.free_threads import free_threads
from lightning_hangcheck.reading.waits.kernel_targets import sleeps_on

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import Need, Rule
    from lightning_hangcheck.model.case import Case

RULES = (
    processes.PROCESS_STOPPED,
    locks_across_ranks.LOCKS_ACROSS_RANKS,
    collectives.UNEVEN_WORK,
    processes.PROCESS_DEAD,
    collectives.COLLECTIVE_MISMATCH,
    collectives.RANK_DIVERGED,
    shared_objects.MISSED_MEETING,
    rendezvous.MISSING_RANKS,
    dataloader_worker.DATALOADER_WORKER,
    files.FILE_LOCK,
    threads.THREAD_DEADLOCK,
    threads.GIL_HELD,
    lost_child.LOST_CHILD,
    own_code.LOGGER_INIT,
    silent_node.UNREACHABLE_NODE,
    silent_node.UNWATCHED_NODE,
    network.NETWORK_WAIT,
    processes.MEMORY_PRESSURE,
    files.CHECKPOINT_IO,
    files.FILESYSTEM_WAIT,
    own_code.MODEL_LOAD,
    own_code.RANK_STALLED,
    own_code.SPINNING,
    fallback.UNKNOWN,
    fallback.SLOW_PROGRESS,
    slow.SLOW_STEPS,
)
"""Of two findings that weigh the same, the earlier rule's counts; see `_weight`."""


class Conclusion(Struct, frozen=True, kw_only=True):
    """What the engine came to: the kind of verdict and the finding behind it, if there is one.

    Attributes:
        pending: Where ranks wait in collectives, by rank.
        divergence: Where the ranks' ways part, if they do.
        skipped: Rules that lacked their evidence; none where the job is over, and none is asked.
    """

    kind: VerdictKind
    job: JobReading
    graph: WaitGraph
    pending: Mapping[int, PendingCollective]
    divergence: Divergence | None = None
    finding: Finding | None = None
    skipped: tuple[Skipped, ...] = ()


def conclude(case: Case) -> Conclusion:
    """Read a case, draw its graph, and find out what is wrong, if anything is."""
    job = read_job(case)
    pending = pending_collectives(job)
    awaited = awaited_ranks(job, pending)
    divergence = find_divergence(job, pending, awaited)
    if is_over(job):
        crash = find_crash(job)
        return Conclusion(
            kind="finished" if crash is None else "crashed",
            job=job,
            graph=WaitGraph(),
            pending=pending,
            divergence=divergence,
            finding=crash,
        )
    graph = build_graph(job, divergence, awaited)
    situation = _situate(job, graph, divergence)
    lacking = [(rule, _lacking(rule, job)) for rule in RULES]
    told = _ask(situation, [rule for rule, lacks in lacking if not lacks])
    judged = [(decide(found, case.limits), found) for found in told]
    alarms = [pair for pair in judged if pair[0] in SEVERITY]
    gravest = _gravest(alarms, graph)
    if gravest is not None and gravest[1].ended_by == "pace":
        graph = slow.waits_in_each_step(job, gravest[1].culprits)
    elif gravest is not None and situation.standstill:
        gravest = gravest[0], _together(gravest[1], [found for _, found in alarms])
    return Conclusion(
        kind=gravest[0] if gravest is not None else "healthy",
        job=job,
        graph=graph,
        pending=pending,
        divergence=divergence,
        finding=gravest[1] if gravest is not None else None,
        skipped=tuple(Skipped(rule.cause, lacks) for rule, lacks in lacking if lacks),
    )


def _ask(situation: Situation, rules: Sequence[Rule]) -> Iterator[Finding]:
    """Ask each rule about the suspects that no more specific one explains: each has one cause."""
    left = situation.suspects
    for rule in rules:
        found = rule.find(replace(situation, suspects=left))
        if found is not None:
            explained = {*found.culprits, *found.left_standing}
            left = tuple(one for one in left if one.rank not in explained)
            yield _of_standstill(found, situation.job) if situation.standstill else found


def _of_standstill(finding: Finding, job: JobReading) -> Finding:
    """A job stands still since the last progress of any rank: before that it only seemed to.

    What nobody but a person could end, or nobody at all, stands for itself.
    """
    if finding.ended_by in ("nobody", "person"):
        return replace(finding, standstill=True)
    since_s = min((one.silence_s for one in job.alive), default=finding.silence_s)
    ended_by = finding.ended_by
    if ended_by == "inside" and any(map(_has_sleeper, job.alive)):
        ended_by = "outside"
    silence_s = min(finding.silence_s, since_s)
    return replace(finding, standstill=True, silence_s=silence_s, ended_by=ended_by)


def _has_sleeper(reading: RankReading) -> bool:
    """Whether a thread of a rank sleeps until a time, as one may that answers another's call."""
    own = reading.view.own_process
    if own is None:
        return False
    return sleeps_on(own) or any(thread.sleeps for thread in free_threads(own))


def _gravest(
    alarms: Sequence[tuple[VerdictKind, Finding]], graph: WaitGraph
) -> tuple[VerdictKind, Finding] | None:
    """Return what weighs most; one alone is not weighed, for that is a walk through the graph."""
    if len(alarms) == 1:
        return alarms[0]
    return max(alarms, key=partial(_weight, graph), default=None)


def _weight(graph: WaitGraph, judged: tuple[VerdictKind, Finding]) -> tuple[int, int]:
    """Weigh a finding: by what it is called, then by how many ranks are led to its culprits."""
    kind, finding = judged
    return SEVERITY[kind], graph.leading_to((*finding.culprits, *finding.left_standing))


def _together(gravest: Finding, alarms: Sequence[Finding]) -> Finding:
    """Name all ranks of a standstill, each stuck by itself; the cause is the largest group's.

    Args:
        gravest: Finding of that group.
        alarms: All findings worth telling, it among them.
    """
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


def _situate(job: JobReading, graph: WaitGraph, divergence: Divergence | None) -> Situation:
    if graph.between_ranks:
        ends = tuple(job.ranks[rank] for rank in graph.ends)
        return Situation(
            job=job, graph=graph, suspects=ends, waited_for=True, divergence=divergence
        )
    stuck = _stuck_by_themselves(job, graph)
    return Situation(
        job=job, graph=graph, suspects=stuck or _long_silent(job, graph), standstill=bool(stuck)
    )


def _stuck_by_themselves(job: JobReading, graph: WaitGraph) -> tuple[RankReading, ...]:
    """Return the ranks that hold a job up in which every rank is stuck and none waits for another.

    Stuck is one that is idle or goes round and round; its children may have been given the same to
    do again and again, but for a DataLoader's. Where any goes round, an idle one may wait for what
    that does not make. Those that only ask again and again, for whatever it is, may wait
    for what the others do not make. Both are victims where there is any other, but for those that
    stand where one of those others stands: a progress bar that ticks in a thread beside it makes a
    deadlock no question.

    Returns:
        None where a rank does anything else, or may on a node that is not seen.
    """
    circling = [one for one in job.alive if one.circling and _by_itself(one)]
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


def _by_itself(reading: RankReading) -> bool:
    return reading.process_activity.activity != "idle" or reading.wait_kind == "dataloader"


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


def _lacking(rule: Rule, job: JobReading) -> tuple[Need, ...]:
    return tuple(need for need in rule.needs if not _is_there(need, job))


def _is_there(need: Need, job: JobReading) -> bool:
    """Whether any rank has evidence of a kind."""
    if need == "stacks":
        return any(reading.frames for reading in job.ranks.values())
    if need == "kernel":
        return any(_kernel_seen(reading) for reading in job.ranks.values())
    return any(not reading.alive for reading in job.ranks.values())


def _kernel_seen(reading: RankReading) -> bool:
    return any(one.kernel is not None for look in reading.view.processes for one in look.samples)
