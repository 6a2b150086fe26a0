"""Runs the rules, from the most specific to the least, and keeps what weighs most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.diagnosis.divergence import find_divergence
from lightning_hangcheck.diagnosis.endings import find_crash, is_over
from lightning_hangcheck.diagnosis.graph import WaitGraph, build_graph
from lightning_hangcheck.diagnosis.patience import decide
from lightning_hangcheck.diagnosis.rules import (
    checkpoint_io,
    collective_mismatch,
    dataloader_worker,
    file_lock,
    filesystem_wait,
    gil_held,
    logger_init,
    memory_pressure,
    model_load,
    network_wait,
    process_dead,
    process_stopped,
    rank_diverged,
    rank_stalled,
    rendezvous,
    slow_progress,
    spinning,
    thread_deadlock,
    uneven_work,
    unknown,
)
from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation
from lightning_hangcheck.diagnosis.scene import RankReading, Scene, read_scene
from lightning_hangcheck.diagnosis.standing import lone_rank
from lightning_hangcheck.model.slugs import VerdictKind

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.finding import Need
    from lightning_hangcheck.model.case import Case

RULES = (
    process_stopped.RULE,
    uneven_work.RULE,
    process_dead.RULE,
    collective_mismatch.RULE,
    rank_diverged.RULE,
    rendezvous.RULE,
    dataloader_worker.RULE,
    file_lock.RULE,
    thread_deadlock.RULE,
    gil_held.RULE,
    logger_init.RULE,
    network_wait.RULE,
    memory_pressure.RULE,
    checkpoint_io.RULE,
    filesystem_wait.RULE,
    model_load.RULE,
    rank_stalled.RULE,
    spinning.RULE,
    unknown.RULE,
    slow_progress.RULE,
)
"""Of two findings that weigh the same, the earlier rule's counts."""
WEIGHT: dict[VerdictKind, int] = {"slow": 1, "suspect": 2, "dead": 3, "hang": 3}


class Conclusion(Struct, frozen=True, kw_only=True):
    """What the engine came to: the kind of verdict and the finding behind it, if there is one."""

    kind: VerdictKind
    scene: Scene
    graph: WaitGraph
    finding: Finding | None = None


def conclude(case: Case) -> Conclusion:
    """Read a case, draw its graph, and find out what is wrong, if anything is."""
    scene = read_scene(case)
    if is_over(scene):
        crash = find_crash(scene)
        kind: VerdictKind = "finished" if crash is None else "crashed"
        return Conclusion(kind=kind, scene=scene, graph=WaitGraph(), finding=crash)
    graph = build_graph(scene)
    situation = _situate(scene, graph)
    found: list[tuple[VerdictKind, Finding]] = []
    for rule in RULES:
        if all(_is_there(need, scene) for need in rule.needs):
            finding = rule.find(situation)
            if finding is not None:
                found.append((decide(finding, case.limits), finding))
    alarms = [pair for pair in found if pair[0] != "healthy"]
    if not alarms:
        return Conclusion(kind="healthy", scene=scene, graph=graph)
    kind, finding = max(alarms, key=lambda pair: WEIGHT[pair[0]])
    return Conclusion(kind=kind, scene=scene, graph=graph, finding=finding)


def _situate(scene: Scene, graph: WaitGraph) -> Situation:
    if graph.between_ranks:
        ends = tuple(scene.ranks[rank] for rank in graph.ends)
        divergence = find_divergence(scene)
        return Situation(
            scene=scene, graph=graph, suspects=ends, waited_for=True, divergence=divergence
        )
    return Situation(scene=scene, graph=graph, suspects=_long_silent(scene))


def _long_silent(scene: Scene) -> tuple[RankReading, ...]:
    """Ranks to ask about where nobody is seen to wait: silent for the whole stall timeout.

    One that moves in circles is not asked: all ranks may prepare their data for long.

    One that stands elsewhere than all the others is asked alone: where ranks wait for each other in
    code that no frame tells (a copy from the GPU), it is the one that departed.
    """
    silent = [
        reading
        for reading in scene.alive
        if reading.activity in ("idle", "busy", "unseen")
        and not reading.doing.circling
        and reading.silence_s >= scene.case.limits.stall_timeout
    ]
    lone = lone_rank(silent) if len(silent) == len(scene.alive) else None
    return tuple(silent) if lone is None else (lone,)


def _is_there(need: Need, scene: Scene) -> bool:
    """Whether any rank has evidence of a kind."""
    if need == "stacks":
        return any(reading.doing.frames for reading in scene.ranks.values())
    if need == "kernel":
        return any(_kernel_seen(reading) for reading in scene.ranks.values())
    return any(not reading.alive for reading in scene.ranks.values())


def _kernel_seen(reading: RankReading) -> bool:
    return any(one.kernel is not None for look in reading.view.processes for one in look.samples)
