"""What other nodes tell, and that nothing is heard of some, becomes part of our case. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.alike import with_members
from lightning_hangcheck.judge.joining import ELSEWHERE, NodeCase, merge_cases
from lightning_hangcheck.judge.node_silence import which_node, why_silent
from lightning_hangcheck.judge.rank_set import members
from lightning_hangcheck.model.case import Case, RankView, RunFacts, SilentNode
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.nodes.classes import (
    FOLDED_ABOVE,
    alike_of,
    bounded,
    brief,
    first_view,
    odd_and_usual,
    together,
    within,
)
from lightning_hangcheck.nodes.word import CALM_BELOW_S, MOST_CODE, MOST_GAPS, TAKEN_NS
from lightning_hangcheck.text.shown import NANOSECONDS, format_ranks, read_utc, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import Reach
    from lightning_hangcheck.model.evidence import AddressReach
    from lightning_hangcheck.nodes.classes import RankClass
    from lightning_hangcheck.nodes.peers import Heard

ANSWERED_LATER_S = 5.0
"""By so much something must have come later than a node's last word: both travel, and are told."""
UNANSWERED_S = 3.0
"""A lost packet is repeated within a second; one of a thousand is, several times, within three."""
GOES_ON_S = 5.0


def join_heard(
    own: Case, heard: Iterable[Heard], silent: Iterable[Heard] = (), number: int = 0
) -> Case:
    """Return the case of this node with the ranks of others.

    Args:
        own: Case of the ranks of this node.
        heard: What those told that are not silent; what is of another round is left out.
        silent: What was told last of those that are.
        number: Of this node.
    """
    started = own.run.local_world_size is not None
    theirs = [one for one in heard if started and _belongs(one, own)]
    known: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
    cases = []
    for one in theirs:
        alone = [line.told for line in one.word.lines if line.alone]
        if alone or not one.word.lines:
            views = tuple(with_members(told.view, told.groups, known) for told in alone)
            cases.append(_case_of(one, own, views))
    cases += _of_classes(theirs, own)
    cases += [_unheard(one, own) for one in silent if _belongs(one, own)]
    if not cases:
        return own
    return merge_cases([NodeCase(f"node {number}", own, 0.0), *cases], own.run.run_id)


def with_unheard(
    own: Case,
    joined: Case,
    absent: Sequence[int],
    silent: Sequence[SilentNode],
    gaps: Sequence[Gap],
) -> Case:
    """Return the joined case with what is not heard of other nodes."""
    facts = replace(
        own.run,
        world_size=joined.run.world_size,
        local_world_size=joined.run.local_world_size,
        absent_nodes=tuple(absent),
        silent_nodes=tuple(silent),
    )
    kept = (gap for gap in joined.gaps if not gaps or gap.why != ELSEWHERE)
    return replace(joined, gaps=(*kept, *gaps), run=facts)


def _belongs(heard: Heard, own: Case) -> bool:
    """Whether a launcher has numbered its ranks, and they are of the round that we see."""
    return heard.word.local_world_size is not None and heard.word.round == own.run.round


def _case_of(heard: Heard, own: Case, views: tuple[RankView, ...]) -> NodeCase:
    """What another node told, as its case would be: on our clocks, of our command."""
    word = heard.word
    age_s = max(0.0, (own.taken_ns - heard.heard_ns) / NANOSECONDS)
    told = Case(
        run=RunFacts(
            run_id=own.run.run_id,
            command=own.run.command,
            started_at=own.run.started_at,
            world_size=word.world_size or own.run.world_size,
            nnodes=own.run.nnodes,
            local_world_size=word.local_world_size,
            machine=word.machine,
        ),
        taken_at=utc(read_utc(own.taken_at) - timedelta(seconds=age_s)),
        taken_ns=TAKEN_NS,
        ranks=views,
        gaps=word.gaps,
        code=word.code,
        limits=own.limits,
    )
    return NodeCase(f"node {word.node}", told, 0.0)


def _of_classes(heard: Sequence[Heard], own: Case) -> list[NodeCase]:
    """What is told of ranks that stand alike, on whichever of these nodes, as one node's case."""
    classes = within(classes_of(heard), (0, own.run.world_size - 1))
    if not classes:
        return []
    words = [one.word for one in heard]
    found, lost = bounded(classes)
    gaps = list(dict.fromkeys(gap for word in words for gap in word.gaps))
    if lost:
        why = "they stand in too many ways of their own for all of them to be told"
        gaps.insert(0, Gap(f"evidence of {lost} ranks", None, why, "other"))
    sizes = [
        word.local_world_size or 0
        for word in words
        if word.lines and not any(line.alone for line in word.lines)
    ]
    told = Case(
        run=replace(own.run, local_world_size=sum(sizes), machine=""),
        taken_at=own.taken_at,
        taken_ns=TAKEN_NS,
        ranks=tuple(map(first_view, found)),
        gaps=tuple(gaps[:MOST_GAPS]),
        code=tuple(dict.fromkeys(note for word in words for note in word.code))[:MOST_CODE],
        limits=own.limits,
        alike=tuple(map(alike_of, found)),
    )
    return [NodeCase("other nodes", told, 0.0)]


def classes_of(heard: Iterable[Heard]) -> tuple[RankClass, ...]:
    """Join what nodes tell of ranks that stand alike, the same on all of them."""
    return together(line for one in heard for line in one.word.lines if not line.alone)


def wanted_of(heard: Iterable[Heard], world_size: int) -> tuple[int, ...]:
    """Return the ranks of other nodes whose evidence is needed: one of each class that is silent.

    In a job of few ranks each tells it unasked.
    """
    if world_size <= FOLDED_ABOVE:
        return ()
    lines = (line for one in heard for line in one.word.lines)
    silent = (line for line in lines if line.told.view.silent_for_s >= CALM_BELOW_S)
    chosen, _ = odd_and_usual(together(silent))
    return tuple(sorted(one.ranks[0] for one in chosen))


def _unheard(heard: Heard, own: Case) -> NodeCase:
    """Of a silent node only who its ranks are, and how far they were: all else may have changed."""
    unheard_s = (own.taken_ns - heard.heard_ns) / NANOSECONDS
    told = [line.told.view for line in heard.word.lines if line.alone]
    alike = [line for line in heard.word.lines if not line.alone]
    alike = list(within(alike, (0, max(0, own.run.world_size - 1))))
    named = () if heard.word.lines else (RankView(rank=rank) for rank in heard.ranks)
    views = tuple(
        replace(brief(view), unheard_for_s=unheard_s, silent_for_s=view.silent_for_s + unheard_s)
        for view in (*told, *named, *map(first_view, alike))
    )
    node = _case_of(heard, own, views)
    case = replace(node.case, gaps=(), code=(), alike=tuple(map(alike_of, alike)))
    return replace(node, case=case)


def last_progress(heard: Iterable[Heard]) -> dict[int, int]:
    """Return when ranks of other nodes last showed progress, by our monotonic clock.

    Of ranks that stand alike, when the last of them did.
    """
    return {
        rank: one.heard_ns - int(line.told.view.silent_for_s * NANOSECONDS)
        for one in heard
        for line in one.word.lines
        for rank in members(line.ranks)
    }


def newest_sample_ns(heard: Heard) -> int:
    """When a node last looked at any of its ranks, by our monotonic clock; 0 if it did not."""
    moments = [
        sample.taken_ns
        for line in heard.word.lines
        for look in line.told.view.processes
        for sample in look.samples
    ]
    return heard.heard_ns - TAKEN_NS + max(moments) if moments else 0


# Nodes of which nothing is heard: those that fell silent, and those that never came


def addresses_to_ask(
    heard: Mapping[int, Heard], own: Iterable[str], missed: Iterable[int]
) -> dict[int, tuple[str, ...]]:
    """Return the addresses by which nodes that may have fallen silent alone are known."""
    known = Counter(own)
    for one in heard.values():
        known.update(set(one.word.addresses))
    return {
        node: tuple(address for address in heard[node].word.addresses if known[address] == 1)
        for node in missed
    }


def silent_node(
    heard: Heard, seconds: float, reaches: Iterable[AddressReach], others: Iterable[RankView]
) -> SilentNode:
    """Say of a node that it fell silent, and what was known of it last."""
    there = list(reaches)
    unanswered_s = max((one.unanswered_s for one in there if one.unanswered), default=0.0)
    silences = [view.silent_for_s for view in others]
    reach: Reach = "unknown"
    if any(one.heard_s < seconds - ANSWERED_LATER_S for one in there):
        reach = "answers"
    elif unanswered_s >= UNANSWERED_S:
        reach = "unanswered"
    elif silences and max(silences) < GOES_ON_S:
        reach = "goes_on"
    known = []
    furthest = heard.word.furthest  # that its ranks were known to be
    if furthest is not None and furthest.checkpoint is not None:
        known.append(f"checkpoint {furthest.checkpoint.number} ({furthest.checkpoint.name})")
    if furthest is not None and furthest.step is not None:
        known.append(f"step {furthest.step}")
    return SilentNode(
        number=heard.word.node,
        ranks=format_ranks(heard.ranks),
        silent_s=seconds,
        reach=reach,
        unanswered_s=unanswered_s,
        last_known=", ".join(known),
    )


def views_of(heard: Iterable[Heard]) -> Iterator[RankView]:
    """Yield what nodes tell of their ranks, of those that stand alike one."""
    return (line.told.view for one in heard for line in one.word.lines)


def silence_gap(node: SilentNode) -> Gap:
    """Write that a node fell silent as what could not be seen."""
    known = f"; last known there: {node.last_known}" if node.last_known else ""
    why = f"has not been heard for {node.silent_s:.0f} s: {why_silent(node)}{known}"
    return Gap(which_node(node), None, why, "other_nodes")


def absent_nodes(absent: Iterable[int], waited_s: float, where: str) -> Gap:
    """Say of nodes that nothing was ever heard of them."""
    why = (
        f"nothing was heard from there for {waited_s:.0f} s: it has not come, no hangcheck run "
        f"watches there, or it does not reach {where}"
    )
    return Gap(which_nodes(absent), None, why, "other_nodes")


def unused_nodes(unused: Mapping[int, str]) -> list[Gap]:
    """Say of nodes that what they tell cannot be read, and why, those of one reason together."""
    alike: dict[str, list[int]] = {}
    for node, why in unused.items():
        alike.setdefault(why, []).append(node)
    return [
        Gap(which_nodes(nodes), None, f"what is told there is not used: {why}", "other_nodes")
        for why, nodes in alike.items()
    ]


def which_nodes(nodes: Iterable[int]) -> str:
    """Write ``node 3`` or ``nodes 3-5``."""
    numbers = format_ranks(nodes)
    return f"node{'s' if ',' in numbers or '-' in numbers else ''} {numbers}"
