"""Ranks wait for those of a node that is no longer heard: network_wait, or nobody can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.node_silence import which_node, why_silent
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.case import SilentNode
    from lightning_hangcheck.model.naming.slugs import Cause


def unreachable_node(situation: Situation) -> Finding | None:
    """Blame ranks whose node cannot be reached, where all that others wait for are such ranks."""
    return _blame(situation, cause="network_wait", reachable=False)


def unwatched_node(situation: Situation) -> Finding | None:
    """Blame ranks that nobody sees, as the sidecar of their node is not heard: why is unknown."""
    return _blame(situation, cause="unknown", reachable=True)


def _blame(situation: Situation, *, cause: Cause, reachable: bool) -> Finding | None:
    """A rank that is seen, and for which others wait as well, may be the only one that is late.

    How long they have stood is what those say that wait; of the others nothing is known.
    """
    unheard = situation.suspects_that_are("unheard")
    waiters = [situation.job.ranks[rank] for rank in situation.graph.waiters]
    if not situation.waited_for or not waiters or len(unheard) < len(situation.suspects):
        return None
    nodes = _nodes_of(situation, unheard)
    if not nodes or reachable == any(node.reach == "unanswered" for node in nodes):
        return None
    who = [reading.rank for reading in unheard]
    sentence = join(
        name_ranks(who),
        "cannot be reached:" if not reachable else f"{verb(who, 'is', 'are')} not seen:",
        "; ".join(_silence(node) for node in nodes),
    )
    measured = blame(
        waiters,
        cause=cause,
        ended_by="unknown_pace" if reachable else "outside",
        confidence=0.5 if reachable else 0.85,
        sentence=sentence,
        waited_for=True,
        aspect="node",
        evidence=[EvidenceItem("node", None, _silence(node)) for node in nodes],
    )
    phase = unheard[0].phase or measured.phase
    return replace(measured, culprits=tuple(who), phase=phase, place=None, pace=None)


def _nodes_of(situation: Situation, unheard: Sequence[RankReading]) -> list[SilentNode]:
    who = {reading.rank for reading in unheard}
    silent = situation.job.case.run.silent_nodes
    return [node for node in silent if who.intersection(parse_ranks(node.ranks))]


def _silence(node: SilentNode) -> str:
    known = f"; last known there: {node.last_known}" if node.last_known else ""
    silent = f"{which_node(node)} has not been heard for {duration(node.silent_s)}"
    return f"{silent}: {why_silent(node)}{known}"


UNREACHABLE_NODE = Rule(cause="network_wait", needs=(), find=unreachable_node)
UNWATCHED_NODE = Rule(cause="unknown", needs=(), find=unwatched_node)
