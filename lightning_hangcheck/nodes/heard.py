"""What was heard of other nodes: as it is used here, and as it is told on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.gather.rank_set import members, rank_set
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.nodes.bounds import MOST_MEMORY, MOST_OF_A_NODE, MOST_TOGETHER
from lightning_hangcheck.nodes.digest import (
    TAKEN_NS,
    NodeDigest,
    NodeState,
    folds_of,
    shortened,
    unfold,
    unfold_folds,
)
from lightning_hangcheck.nodes.encoding import BadDigest, memory_of, unpack
from lightning_hangcheck.nodes.folding import FoldedRanks, together
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lightning_hangcheck.gather.rank_set import RankSet
    from lightning_hangcheck.nodes.encoding import JudgesWord

NOTHING = NodeDigest(nodes=())
WITHOUT_STACKS = ((),)


class Heard(Struct, frozen=True):
    """A node of which something was heard.

    Attributes:
        views: Of its ranks, times as `digest` tells them.
        heard_ns: When that was new, by our monotonic clock.
        source: The digest that it came in.
        folds: Of that digest, the views of their ranks as in ``views``.
        most_memory: Bytes that the digest takes at most.
    """

    state: NodeState
    views: tuple[RankView, ...]
    heard_ns: int
    source: NodeDigest
    folds: tuple[FoldedRanks, ...] = ()
    most_memory: int = 0


def newly_heard(data: bytes, known: Iterable[Heard], now_ns: int) -> list[Heard]:
    """Read what a node tells, without its evidence where all that is kept would take too much.

    Args:
        data: As it came.
        known: What is kept so far; one node that says nothing new keeps all that it came with.
        now_ns: Present time by our monotonic clock.

    Raises:
        BadDigest: It cannot be read, or there is no room left for it.
    """
    digest, nodes, folds = unpack(data)
    kept = sum({id(one.source): one.most_memory for one in known}.values())
    memory = memory_of(digest)
    if kept + memory > MOST_TOGETHER:
        digest = shortened(digest)
        nodes, folds = unfold(digest, WITHOUT_STACKS), unfold_folds(digest, WITHOUT_STACKS)
        memory = memory_of(digest)
    if kept + memory > MOST_TOGETHER + MOST_MEMORY:
        raise BadDigest("with what others tell it could take more memory than there is for all")
    return [
        Heard(
            one.state,
            one.views,
            now_ns - int(one.state.age_s * NANOSECONDS),
            digest,
            folds,
            memory,
        )
        for one in nodes
    ]


def addresses_in(data: bytes, node: int) -> tuple[str, ...]:
    """Return by which addresses a node may be known that left this, as far as it can be read."""
    try:
        _, nodes, _ = unpack(data)
    except BadDigest:
        return ()
    return next((told.state.addresses for told in nodes if told.state.node == node), ())


def ranks_of(heard: Heard) -> Iterator[int]:
    """Yield the ranks of a node, those that are told as one among them."""
    yield from (view.rank for view in heard.views)
    yield from members(heard.state.folded)


def folds_heard(heard: Iterable[Heard]) -> tuple[FoldedRanks, ...]:
    """Return what is told of the ranks of some nodes that stand alike, the same on all of them."""
    sources: dict[int, tuple[tuple[FoldedRanks, ...], list[RankSet]]] = {}
    for one in heard:
        sources.setdefault(id(one.source), (one.folds, []))[1].append(one.state.folded)
    return together(one for folds, ranks in sources.values() for one in folds_of(folds, ranks))


def newest_sample_ns(heard: Heard) -> int:
    """When a node last looked at any of its ranks, by our monotonic clock; 0 if it did not."""
    moments = [
        sample.taken_ns
        for view in (*heard.views, *(fold.told.view for fold in heard.folds))
        for look in view.processes
        for sample in look.samples
    ]
    return heard.heard_ns - TAKEN_NS + max(moments) if moments else 0


def of_round(heard: Heard, number: int) -> Heard | None:
    """Return what a node told of a round, its present one or the one before; None where nothing."""
    state, left = heard.state, heard.state.left
    if state.round == number:
        return heard
    if left is None or left.number != number:
        return None
    before = replace(
        state,
        round=number,
        world_size=left.world_size,
        local_world_size=left.local_world_size,
        ranks=(),
        folded=(),
        gaps=(),
        code=(),
    )
    return Heard(before, left.ranks, heard.heard_ns, NOTHING)


def passed_on(heard: Iterable[Heard], now_ns: int) -> Iterator[NodeDigest]:
    """What was heard, as it is told further up: as old as it is by now."""
    sources: dict[int, tuple[NodeDigest, list[NodeState]]] = {}
    for one in heard:
        _, states = sources.setdefault(id(one.source), (one.source, []))
        states.append(replace(one.state, age_s=_age_s(one, now_ns)))
    for source, states in sources.values():
        yield replace(source, nodes=tuple(states))


def newest(ways: Iterable[Mapping[int, Heard]]) -> dict[int, Heard]:
    """Return of each node what was heard last, on whichever way."""
    found: dict[int, Heard] = {}
    for heard in ways:
        for node, one in heard.items():
            known = found.get(node)
            if known is None or known.heard_ns < one.heard_ns:
                found[node] = one
    return found


def as_lost(heard: Heard, now_ns: int) -> NodeState:
    """Who a silent node was, for those who never heard it: no evidence, which may be old."""
    return replace(
        heard.state,
        ranks=(),
        folded=rank_set(ranks_of(heard)),
        gaps=(),
        code=(),
        left=None,
        reach=(),
        age_s=_age_s(heard, now_ns),
    )


def who_judged(word: JudgesWord, word_ns: int) -> dict[int, Heard]:
    """Return who told a word, and the nodes that this one no longer heard."""
    lost = [_bare(one, members(one.folded), word_ns) for one in word.lost]
    if word.state is not None:
        lost.append(_bare(word.state, _few_ranks(word.ranks), word_ns))
    return {one.state.node: one for one in lost}


def _bare(state: NodeState, ranks: Iterable[int], told_ns: int) -> Heard:
    heard_ns = told_ns - int(state.age_s * NANOSECONDS)
    views = tuple(RankView(rank=rank) for rank in ranks)
    return Heard(replace(state, ranks=(), folded=(), age_s=0.0), views, heard_ns, NOTHING)


def _few_ranks(text: str) -> tuple[int, ...]:
    """Read the ranks of a node; none where they are not to be read, or more than a node has."""
    try:
        return parse_ranks(text, MOST_OF_A_NODE)
    except ValueError:
        return ()


def _age_s(heard: Heard, now_ns: int) -> float:
    return max(0.0, (now_ns - heard.heard_ns) / NANOSECONDS)
