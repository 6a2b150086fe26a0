"""What one node tells the others of its ranks, and what a few of them tell together. Pure.

But for the node's clock itself, which is only shown, no moment of any clock is in it: times are
told as if the evidence had been taken at `TAKEN_NS`, so that whoever reads it can put them on
a clock of its own.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.gather.alike_records import Members, with_members
from lightning_hangcheck.gather.group_families import without_members
from lightning_hangcheck.gather.node_view import rebased
from lightning_hangcheck.gather.rank_set import RankSet, joined, size
from lightning_hangcheck.model.beat import CheckpointMark
from lightning_hangcheck.model.case import CodeNote, RankView
from lightning_hangcheck.model.evidence import AddressReach, Gap, ProcessLook, Sample, ThreadStack
from lightning_hangcheck.nodes import bounds
from lightning_hangcheck.nodes.bounds import MOST_CODE, MOST_GAPS
from lightning_hangcheck.nodes.folding import (
    FOLDED_ABOVE,
    FoldedRanks,
    RankDigest,
    bounded,
    brief,
    folded,
    together,
    told_ranks,
    within,
    without_evidence,
)
from lightning_hangcheck.nodes.round_end import LeftRound
from lightning_hangcheck.nodes.stack_tree import Frames, StackTree, StackTreeBuilder, pruned
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import Case

    Renumbered = Sequence[int] | Mapping[int, int]

TAKEN_NS = 1 << 60
"""36 years: neither before nor after it a time of a running machine comes near 0, which says that
there is no such time."""
CALM_BELOW_S = 1.5
"""Silence below which a rank tells no stacks and no collectives: a look comes at 2 s."""
TOO_LARGE = Gap("evidence of this node", None, "it is too large to be told", "other")


class Furthest(Struct, frozen=True, array_like=True):
    """How far the ranks of a node have come."""

    step: int | None = None
    checkpoint: CheckpointMark | None = None


class Network(Struct, frozen=True):
    """What a node knows of the network, as in `NodeState`."""

    addresses: tuple[str, ...] = ()
    reach: tuple[AddressReach, ...] = ()


class RoundMark(Struct, frozen=True):
    """By what nodes know that their ranks are of one start of the job, however they count it.

    Attributes:
        began_s: Seconds since the ranks were started; 0 where no torchrun started them.
        store_port: At which it has them look for their store.
    """

    began_s: float = 0.0
    store_port: int = 0


class ReadWord(Struct, frozen=True, array_like=True):
    """Which word of a node that judges was read last: that node's number, and the word's stamp."""

    judge: int = -1
    stamp: int = 0


UNTOLD = Network()
UNMARKED = RoundMark()
UNREAD = ReadWord()


class NodeState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node.

    Attributes:
        node: Its number, as the launcher has it.
        stamp: Another one each time that the node tells anything.
        age_s: How old this is by the clocks of those that passed it on.
        ended: The command has ended there: nothing more will be heard.
        round: Number of the round that the ranks belong to.
        mark: Of that round.
        world_size: Ranks of the job as the node knows it, 0 while unknown.
        local_world_size: Ranks that should run there, None where no launcher says so.
        machine: As in `RunFacts`.
        addresses: By which other nodes may know this one.
        reach: What connections show of the addresses that the first node asked about.
        wall_clock_s: Of the node, when it told this; 0 where it does not tell.
        up_s: How long its host was up then, likewise.
        first_word_up_s: That less the first node's, of the quickest word that it read of it:
            what the word took, and the difference of the two.
        folded: Ranks of this node that are told in the digest's folds.
        furthest: Checkpoint and step of that of these which was furthest.
        read: The newest word of who judges that the node has read.
        code: What the source says around the lines on which ranks stand.
        left: The round before, times as those of the ranks; None once that is long ago.
        software: Version of this package there; empty where it does not tell.
    """

    node: int
    stamp: int
    age_s: float = 0.0
    ended: bool = False
    round: int = 0
    mark: RoundMark = UNMARKED
    world_size: int = 0
    local_world_size: int | None = None
    machine: Annotated[str, bounds.MACHINE] = ""
    ranks: Annotated[tuple[RankDigest, ...], bounds.RANKS_OF_A_NODE] = ()
    folded: Annotated[RankSet, bounds.SET_OF_A_NODE] = ()
    furthest: Furthest | None = None
    gaps: Annotated[tuple[Gap, ...], bounds.GAPS_OF_A_NODE] = ()
    addresses: Annotated[tuple[str, ...], bounds.ASKED] = ()
    reach: Annotated[tuple[AddressReach, ...], bounds.ASKED] = ()
    wall_clock_s: float = 0.0
    up_s: float = 0.0
    first_word_up_s: float | None = None
    read: ReadWord = UNREAD
    code: Annotated[tuple[CodeNote, ...], bounds.CODE] = ()
    left: LeftRound | None = None
    software: Annotated[str, bounds.VERSION_TEXT] = ""


class NodeDigest(Struct, frozen=True, kw_only=True):
    """One or several nodes, with one tree of stacks.

    Attributes:
        version: Of this form; another one is not read. So it travels though it is a default, which
            a reader of another version would fill in by its own.
        folds: Ranks of any of these nodes that stand alike.
        gaps: Of the nodes whose ranks are folded, as is what follows.
    """

    version: int = 2
    nodes: Annotated[tuple[NodeState, ...], bounds.NODES]
    tree: StackTree = StackTree()
    folds: Annotated[tuple[FoldedRanks, ...], bounds.FOLDS] = ()
    gaps: Annotated[tuple[Gap, ...], bounds.GAPS] = ()
    code: Annotated[tuple[CodeNote, ...], bounds.CODE] = ()


class NodeViews(Struct, frozen=True):
    """A node's state with the views of its ranks, times as if taken at `TAKEN_NS`."""

    state: NodeState
    views: tuple[RankView, ...]


def digest_of(
    case: Case,
    node: int,
    stamp: int,
    *,
    ended: bool = False,
    network: Network = UNTOLD,
    mark: RoundMark = UNMARKED,
    left: LeftRound | None = None,
    standings: Callable[[Sequence[RankView], int], Sequence[int]] | None = None,
    folded_above: int = FOLDED_ABOVE,
) -> NodeDigest:
    """Fold the case of one node.

    Args:
        case: Of the ranks of this node alone.
        node: Its number.
        stamp: Another one each time.
        ended: As in `NodeState`.
        network: What the node knows of the network.
        mark: As in `NodeState`.
        left: The same, times as those of the case.
        standings: Gives, by the views of a node's ranks and the time of its case, equal numbers to
            those that stand alike, 0 to one that does not; without it, each is told by itself.
        folded_above: Ranks of a job above which those are told as one.
    """
    builder, shift_ns = StackTreeBuilder(), TAKEN_NS - case.taken_ns
    views = [brief(view) if view.silent_for_s < CALM_BELOW_S else view for view in case.ranks]
    told = any(view.processes for view in views)
    state = NodeState(
        node=node,
        stamp=stamp,
        ended=ended,
        round=case.run.round,
        mark=mark,
        world_size=case.run.world_size,
        local_world_size=case.run.local_world_size,
        machine=case.run.machine,
        ranks=tuple(_fold(rebased(one, shift_ns), builder) for one in views),
        gaps=tuple(gap for gap in case.gaps if gap.kind != "other_nodes") if told else (),
        addresses=network.addresses,
        reach=network.reach,
        code=case.code if told else (),
        left=rebased(left, shift_ns) if left is not None else None,
        software=__version__,
    )
    digest = NodeDigest(nodes=(state,), tree=builder.tree())
    if standings is None or case.run.world_size <= folded_above:
        return digest
    return _folded(digest, standings(views, case.taken_ns))


def merge_digests(digests: Iterable[NodeDigest]) -> NodeDigest:
    """Join digests; of two states of a node the younger counts, of equally old ones the first."""
    builder = StackTreeBuilder()
    told, states = list(digests), dict[int, tuple[int, NodeState]]()
    moved: list[Sequence[int]] = []
    for at, digest in enumerate(told):
        moved.append(builder.graft(digest.tree))
        for state in digest.nodes:
            known = states.get(state.node)
            if known is None or state.age_s < known[1].age_s:
                states[state.node] = at, state
    taken: list[list[RankSet]] = [[] for _ in told]
    for at, state in states.values():
        taken[at].append(state.folded)
    folds = [
        replace(one, told=_moved(one.told, here))
        for digest, here, ranks in zip(told, moved, taken, strict=True)
        for one in folds_of(digest.folds, ranks)
    ]
    kept, lost = bounded(together(folds))
    tree = builder.tree()
    ordered = (states[node] for node in sorted(states))
    nodes = tuple(_renumbered(state, moved[at]) for at, state in ordered)
    if kept:
        every = chain((one.told for one in kept), *(state.ranks for state in nodes))
        tree, here = pruned(tree, chain.from_iterable(told.leaves for told in every))
        kept = tuple(replace(one, told=_moved(one.told, here)) for one in kept)
        nodes = tuple(_renumbered(state, here) for state in nodes)
    return NodeDigest(
        nodes=nodes,
        tree=tree,
        folds=kept,
        gaps=_few(dict.fromkeys(gap for digest in told for gap in digest.gaps), lost),
        code=tuple(dict.fromkeys(note for digest in told for note in digest.code))[:MOST_CODE],
    )


def folds_of(folds: Sequence[FoldedRanks], ranks: Sequence[RankSet]) -> Sequence[FoldedRanks]:
    """Return what folds tell of the ranks of some nodes.

    Args:
        folds: Of a digest.
        ranks: Those of the nodes that count; the others' are told elsewhere, or of nobody.
    """
    if sum(map(size, ranks)) == told_ranks(folds):
        return folds
    return within(folds, joined(ranks))


def shortened(digest: NodeDigest) -> NodeDigest:
    """Return the digest without what looks brought, where it would be too large to be told."""
    told = [
        replace(
            state,
            ranks=tuple(RankDigest(brief(one.view)) for one in state.ranks),
            code=(),
            left=None,
            gaps=(TOO_LARGE,) if state.ranks else (),
            addresses=state.addresses[: bounds.MOST_ASKED],
            reach=state.reach[: bounds.MOST_ASKED],
        )
        for state in digest.nodes
    ]
    folds = together(map(without_evidence, digest.folds))
    gaps = (TOO_LARGE,) if folds else ()
    return replace(digest, nodes=tuple(told), tree=StackTree(), folds=folds, gaps=gaps, code=())


def _folded(digest: NodeDigest, standings: Sequence[int]) -> NodeDigest:
    """Fold the ranks of a digest of one node that have a standing."""
    (state,) = digest.nodes
    pairs = list(zip(state.ranks, standings, strict=True))
    folds = together(folded(told, standing) for told, standing in pairs if standing)
    own = replace(
        state,
        ranks=tuple(told for told, standing in pairs if not standing),
        folded=joined(one.ranks for one in folds),
        furthest=_furthest([told.view.beat for told in state.ranks if told.view.beat is not None]),
        gaps=(),
        code=(),
    )
    return replace(digest, nodes=(own,), folds=folds, gaps=state.gaps, code=state.code)


def _furthest(beats: Sequence[Beat]) -> Furthest | None:
    marks = [beat.checkpoint for beat in beats if beat.checkpoint is not None]
    steps = [beat.step for beat in beats if beat.step is not None]
    mark = max(marks, key=lambda one: one.number, default=None)
    return Furthest(max(steps, default=None), mark) if marks or steps else None


def _few(gaps: Iterable[Gap], lost: int) -> tuple[Gap, ...]:
    """Keep the first gaps of thousands of nodes, and say how many ranks lost their evidence."""
    if lost:
        why = "they stand in too many ways of their own for all of them to be told"
        gaps = (Gap(f"evidence of {lost} ranks", None, why, "other"), *gaps)
    return tuple(gaps)[:MOST_GAPS]


def unfold(digest: NodeDigest, stacks: Sequence[Frames]) -> list[NodeViews]:
    """Give the ranks their stacks back.

    Args:
        digest: Of any nodes.
        stacks: Of its tree.

    Raises:
        ValueError: A rank has more or fewer stacks than are told of it, or one that is not there.
    """
    known = Members()
    return [
        NodeViews(
            state,
            tuple(with_members(_unfold(one, stacks), one.groups, known) for one in state.ranks),
        )
        for state in digest.nodes
    ]


def unfold_folds(digest: NodeDigest, stacks: Sequence[Frames]) -> tuple[FoldedRanks, ...]:
    """Give the ranks that stand for others their stacks back.

    Raises:
        ValueError: As for `unfold`.
    """
    return tuple(
        replace(one, told=replace(one.told, view=_unfold(one.told, stacks), leaves=()))
        for one in digest.folds
    )


def _moved(told: RankDigest, here: Renumbered) -> RankDigest:
    return replace(told, leaves=tuple(here[leaf] for leaf in told.leaves)) if told.leaves else told


def _renumbered(state: NodeState, here: Renumbered) -> NodeState:
    return (
        replace(state, ranks=tuple(_moved(one, here) for one in state.ranks))
        if state.ranks
        else state
    )


def _fold(view: RankView, builder: StackTreeBuilder) -> RankDigest:
    leaves = tuple(builder.leaf(stack.frames) for stack in _stacks(view))
    bare, groups = without_members(_with_stacks(view, lambda stack: replace(stack, frames=())))
    return RankDigest(bare, leaves, groups)


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
