"""Joins to this node's case what other nodes send, and that some are silent."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.alike import with_members
from lightning_hangcheck.judge.joining import ELSEWHERE, NodeCase, merge_cases
from lightning_hangcheck.judge.wording import which_node, why_silent
from lightning_hangcheck.model.case import Case, RankView, Reach, RunFacts, SilentNode
from lightning_hangcheck.model.evidence import AddressReach, Gap
from lightning_hangcheck.nodes import message as messages
from lightning_hangcheck.text.moments import read_utc, utc
from lightning_hangcheck.text.shown import NANOSECONDS, format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.nodes.who_judges import PeerState

CANNOT_JOIN = "what other nodes tell is left out, it cannot be joined"
ANSWERED_LATER_S = 5.0
"""A packet must come this much later than a node's last message to count: both travel."""
UNANSWERED_S = 3.0
"""A lost packet is sent again within 1 s; one in a thousand needs several tries, within 3 s."""
GOES_ON_S = 5.0


def join_peers(
    own: Case, peers: Iterable[PeerState], silent: Iterable[PeerState] = (), number: int = 0
) -> Case:
    """Return this node's case with the ranks of other nodes that are in the same round.

    Of ``silent`` nodes only the ranks' names, and how far they were, are joined.
    """
    started = own.run.local_world_size is not None
    theirs = [peer for peer in peers if started and _belongs(peer, own)]
    cases = []
    for peer in theirs:
        alone = [line for line in peer.message.lines if line.alone]
        if alone or not peer.message.lines:
            cases.append(
                _case_of(peer, own, (with_members(line.view, line.groups) for line in alone))
            )
    # ranks in the same situation form one case for all of these nodes
    lines = (line for peer in theirs for line in peer.message.lines if not line.alone)
    classes = messages.within(messages.together(lines), (0, own.run.world_size - 1))
    if classes:
        cases.append(_of_classes(classes, [peer.message for peer in theirs], own))
    cases += [_silent_node(peer, own) for peer in silent if _belongs(peer, own)]
    if not cases:
        return own
    return merge_cases([NodeCase(f"node {number}", own, met=True), *cases], own.run.run_id)


def _belongs(peer: PeerState, own: Case) -> bool:
    return peer.message.local_world_size is not None and peer.message.round == own.run.round


def _case_of(peer: PeerState, own: Case, views: Iterable[RankView]) -> NodeCase:
    message = peer.message
    age_s = max(0.0, (own.taken_ns - peer.received_ns) / NANOSECONDS)
    case = Case(
        run=RunFacts(
            run_id=own.run.run_id,
            command=own.run.command,
            started_at=own.run.started_at,
            world_size=message.world_size or own.run.world_size,
            nnodes=own.run.nnodes,
            local_world_size=message.local_world_size,
            machine=message.machine,
        ),
        taken_at=utc(read_utc(own.taken_at) - timedelta(seconds=age_s)),
        taken_ns=messages.TAKEN_NS,
        ranks=tuple(views),
        gaps=message.gaps,
        code=message.code,
        limits=own.limits,
    )
    return NodeCase(f"node {message.node}", case, met=True)


def _of_classes(
    classes: Sequence[messages.RankClass], words: Sequence[messages.Message], own: Case
) -> NodeCase:
    found, lost = messages.bounded(classes)
    gaps = list(dict.fromkeys(gap for message in words for gap in message.gaps))
    if lost:
        why = "they stand in too many ways of their own for all of them to be told"
        gaps.insert(0, Gap(f"evidence of {lost} ranks", None, why, "other"))
    folded = [node for node in words if node.lines and not any(line.alone for line in node.lines)]
    ranks = sum(node.local_world_size or 0 for node in folded)
    views, alike = zip(*map(messages.as_view, found), strict=True)
    case = Case(
        run=replace(own.run, local_world_size=ranks, machine=""),
        taken_at=own.taken_at,
        taken_ns=messages.TAKEN_NS,
        ranks=views,
        gaps=tuple(gaps[: messages.MOST_GAPS]),
        code=tuple(dict.fromkeys(note for message in words for note in message.code))[
            : messages.MOST_CODE
        ],
        limits=own.limits,
        alike=alike,
    )
    return NodeCase("other nodes", case, met=True)


def _silent_node(peer: PeerState, own: Case) -> NodeCase:
    quiet_s = (own.taken_ns - peer.received_ns) / NANOSECONDS
    alone = [line.view for line in peer.message.lines if line.alone]
    lines = [line for line in peer.message.lines if not line.alone]
    alike = [
        messages.as_view(rank_class)
        for rank_class in messages.within(lines, (0, max(0, own.run.world_size - 1)))
    ]
    views = (
        replace(
            messages.brief(view), unheard_for_s=quiet_s, silent_for_s=view.silent_for_s + quiet_s
        )
        for view in (*alone, *(view for view, _ in alike))
    )
    node = _case_of(peer, own, views)
    case = replace(node.case, gaps=(), code=(), alike=tuple(stands for _, stands in alike))
    return replace(node, case=case)


def wanted_of(peers: Iterable[PeerState], world_size: int) -> tuple[int, ...]:
    """Return ranks of other nodes whose evidence is needed: one of each silent class."""
    if world_size <= messages.FOLDED_ABOVE:
        return ()
    lines = (line for peer in peers for line in peer.message.lines)
    silent = (line for line in lines if line.view.silent_for_s >= messages.CALM_BELOW_S)
    chosen, _ = messages.odd_and_usual(messages.together(silent))
    return tuple(sorted(rank_class.ranks[0] for rank_class in chosen))


# Nodes that are not heard: those that fell silent, and those that never came


def with_silent_nodes(
    own: Case,
    joined: Case,
    absent: Sequence[int],
    silent: Sequence[SilentNode],
    gaps: Sequence[Gap],
) -> Case:
    """Return the joined case with what is unknown of other nodes."""
    facts = replace(
        own.run,
        world_size=joined.run.world_size,
        local_world_size=joined.run.local_world_size,
        absent_nodes=tuple(absent),
        silent_nodes=tuple(silent),
    )
    kept = (gap for gap in joined.gaps if not gaps or gap.why != ELSEWHERE)
    return replace(joined, gaps=(*kept, *gaps), run=facts)


def addresses_to_ask(
    peers: Mapping[int, PeerState], own: Iterable[str], missed: Iterable[int]
) -> dict[int, tuple[str, ...]]:
    """Return, for each missed node, the addresses that no other node has."""
    known = Counter(own)
    for peer in peers.values():
        known.update(set(peer.message.addresses))
    return {
        node: tuple(address for address in peers[node].message.addresses if known[address] == 1)
        for node in missed
    }


def silent_node(
    peer: PeerState, seconds: float, reaches: Iterable[AddressReach], others: Iterable[RankView]
) -> SilentNode:
    """Describe a node that fell silent, and what was known of it last."""
    there = list(reaches)
    unanswered_s = max((peer.unanswered_s for peer in there if peer.unanswered), default=0.0)
    silences = [view.silent_for_s for view in others]
    reach: Reach = "unknown"
    if any(peer.heard_s < seconds - ANSWERED_LATER_S for peer in there):
        reach = "answers"
    elif unanswered_s >= UNANSWERED_S:
        reach = "unanswered"
    elif silences and max(silences) < GOES_ON_S:
        reach = "goes_on"
    # how far its ranks were known to be
    beats = [view.beat for view in views_of([peer]) if view.beat is not None]
    marks = [beat.checkpoint for beat in beats if beat.checkpoint is not None]
    mark = max(marks, key=lambda mark: mark.number, default=None)
    steps = [beat.step for beat in beats if beat.step is not None]
    known = [f"checkpoint {mark.number} ({mark.name})"] if mark is not None else []
    known += [f"step {max(steps)}"] if steps else []
    return SilentNode(
        number=peer.message.node,
        ranks=format_ranks(peer.ranks),
        silent_s=seconds,
        reach=reach,
        unanswered_s=unanswered_s,
        last_known=", ".join(known),
    )


def views_of(peers: Iterable[PeerState]) -> Iterator[RankView]:
    """Yield the nodes' views of ranks, one for all ranks in the same situation."""
    return (line.view for peer in peers for line in peer.message.lines)


def silence_gap(node: SilentNode) -> Gap:
    """Return a node's silence as a gap."""
    known = f"; last known there: {node.last_known}" if node.last_known else ""
    why = f"has not been heard for {node.silent_s:.0f} s: {why_silent(node)}{known}"
    return Gap(which_node(node), None, why, "other_nodes")


def which_nodes(nodes: Iterable[int]) -> str:
    """Write ``node 3`` or ``nodes 3-5``."""
    numbers = format_ranks(nodes)
    return f"node{'s' if ',' in numbers or '-' in numbers else ''} {numbers}"
