"""What one node tells the others of its ranks, and what a few of them tell together. Pure.

But for the node's clock itself, which is only shown, no moment of any clock is in it: times are
told as if the evidence had been taken at `TAKEN_NS`, so that whoever reads it can put them on
a clock of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.gather.node_view import rebased
from lightning_hangcheck.model.case import CodeNote, RankView
from lightning_hangcheck.model.evidence import AddressReach, Gap, ProcessLook, Sample, ThreadStack
from lightning_hangcheck.nodes.stack_tree import Frames, StackTree, StackTreeBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lightning_hangcheck.model.case import Case

TAKEN_NS = 1 << 60
"""36 years: neither before nor after it a time of a running machine comes near 0, which says that
there is no such time."""
CALM_BELOW_S = 1.5
"""Silence below which a rank tells no stacks and no collectives: a look comes at 2 s."""


class RankDigest(Struct, frozen=True, array_like=True):
    """A rank as its node sees it.

    Attributes:
        view: Without the frames of its stacks.
        leaves: Of each stack, in the order of the view's processes, samples and threads, its last
            node in the tree.
    """

    view: RankView
    leaves: tuple[int, ...] = ()


class Network(Struct, frozen=True):
    """What a node knows of the network, as in `NodeState`."""

    addresses: tuple[str, ...] = ()
    reach: tuple[AddressReach, ...] = ()


UNTOLD = Network()


class NodeState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node.

    Attributes:
        node: Its number, as the launcher has it.
        stamp: Another one each time that the node tells anything.
        age_s: How old this is by the clocks of those that passed it on.
        ended: The command has ended there: nothing more will be heard.
        round: Number of the round that the ranks belong to.
        world_size: Ranks of the job as the node knows it, 0 while unknown.
        local_world_size: Ranks that should run there, None where no launcher says so.
        addresses: By which other nodes may know this one.
        reach: What connections show of the addresses that the first node asked about.
        wall_clock_s: Of the node, when it told this; 0 where it does not tell.
        first_word_s: Its clock less the first node's, of the quickest word that it read of that
            one's: what the word took, and the clocks' difference.
        code: What the source says around the lines on which ranks stand.
    """

    node: int
    stamp: int
    age_s: float = 0.0
    ended: bool = False
    round: int = 0
    world_size: int = 0
    local_world_size: int | None = None
    ranks: tuple[RankDigest, ...] = ()
    gaps: tuple[Gap, ...] = ()
    addresses: tuple[str, ...] = ()
    reach: tuple[AddressReach, ...] = ()
    wall_clock_s: float = 0.0
    first_word_s: float | None = None
    code: tuple[CodeNote, ...] = ()


class NodeDigest(Struct, frozen=True, kw_only=True):
    """One or several nodes, with one tree of stacks.

    Attributes:
        version: Of this form; another one is not read.
    """

    version: int = 1
    nodes: tuple[NodeState, ...]
    tree: StackTree = StackTree()


class NodeViews(Struct, frozen=True):
    """A node's state with the views of its ranks, times as if taken at `TAKEN_NS`."""

    state: NodeState
    views: tuple[RankView, ...]


def digest_of(
    case: Case, node: int, stamp: int, *, ended: bool = False, network: Network = UNTOLD
) -> NodeDigest:
    """Fold the case of one node.

    Args:
        case: Of the ranks of this node alone.
        node: Its number.
        stamp: Another one each time.
        ended: As in `NodeState`.
        network: What the node knows of the network.
    """
    builder = StackTreeBuilder()
    views = [_brief(view) if view.silent_for_s < CALM_BELOW_S else view for view in case.ranks]
    told = any(view.processes for view in views)
    state = NodeState(
        node=node,
        stamp=stamp,
        ended=ended,
        round=case.run.round,
        world_size=case.run.world_size,
        local_world_size=case.run.local_world_size,
        ranks=tuple(_fold(rebased(one, TAKEN_NS - case.taken_ns), builder) for one in views),
        gaps=tuple(gap for gap in case.gaps if gap.kind != "other_nodes") if told else (),
        addresses=network.addresses,
        reach=network.reach,
        code=case.code if told else (),
    )
    return NodeDigest(nodes=(state,), tree=builder.tree())


def merge_digests(digests: Iterable[NodeDigest]) -> NodeDigest:
    """Join digests; of two states of a node the younger counts, of equally old ones the first."""
    builder = StackTreeBuilder()
    states: dict[int, NodeState] = {}
    for digest in digests:
        here = builder.graft(digest.tree)
        for state in digest.nodes:
            known = states.get(state.node)
            if known is None or state.age_s < known.age_s:
                states[state.node] = _moved(state, here)
    nodes = tuple(states[node] for node in sorted(states))
    return NodeDigest(nodes=nodes, tree=builder.tree())


def without_evidence(digest: NodeDigest) -> NodeDigest:
    """Return the digest without what looks brought, where it would be too large to be told."""
    brief = [
        replace(
            state,
            ranks=tuple(RankDigest(_brief(one.view)) for one in state.ranks),
            code=(),
            gaps=(Gap("evidence of this node", None, "it is too large to be told", "other"),),
        )
        for state in digest.nodes
    ]
    return replace(digest, nodes=tuple(brief), tree=StackTree())


def unfold(digest: NodeDigest, stacks: Sequence[Frames]) -> list[NodeViews]:
    """Give the ranks their stacks back.

    Args:
        digest: Of any nodes.
        stacks: Of its tree.

    Raises:
        ValueError: A rank has more or fewer stacks than are told of it, or one that is not there.
    """
    return [
        NodeViews(state, tuple(_unfold(one, stacks) for one in state.ranks))
        for state in digest.nodes
    ]


def _brief(view: RankView) -> RankView:
    return replace(view, processes=(), flight=None)


def _moved(state: NodeState, here: Sequence[int]) -> NodeState:
    ranks = [RankDigest(one.view, tuple(here[leaf] for leaf in one.leaves)) for one in state.ranks]
    return replace(state, ranks=tuple(ranks))


def _fold(view: RankView, builder: StackTreeBuilder) -> RankDigest:
    leaves = tuple(builder.leaf(stack.frames) for stack in _stacks(view))
    return RankDigest(_with_stacks(view, lambda stack: replace(stack, frames=())), leaves)


def _unfold(told: RankDigest, stacks: Sequence[Frames]) -> RankView:
    if len(told.leaves) != sum(1 for _ in _stacks(told.view)):
        raise ValueError("a rank has other stacks than are told of it")
    if any(not 0 <= leaf < len(stacks) for leaf in told.leaves):
        raise ValueError("a rank has a stack that is not there")
    leaves = iter(told.leaves)
    return _with_stacks(told.view, lambda stack: replace(stack, frames=stacks[next(leaves)]))


def _stacks(view: RankView) -> Iterator[ThreadStack]:
    for look in view.processes:
        for sample in look.samples:
            if sample.stack is not None:
                yield from sample.stack.threads


def _with_stacks(view: RankView, change: Callable[[ThreadStack], ThreadStack]) -> RankView:
    def of_sample(sample: Sample) -> Sample:
        if sample.stack is None:
            return sample
        threads = tuple(change(one) for one in sample.stack.threads)
        return replace(sample, stack=replace(sample.stack, threads=threads))

    def of_look(look: ProcessLook) -> ProcessLook:
        return replace(look, samples=tuple(of_sample(one) for one in look.samples))

    return replace(view, processes=tuple(of_look(one) for one in view.processes))
