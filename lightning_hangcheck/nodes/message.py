"""What a node sends the others: who it is, a line for each rank, evidence on request. Pure.

In a large job, ranks in the same situation share a line. `judge.job` numbers the situations; here
equal numbers are joined. So a hundred thousand ranks send as much evidence as there are situations.
A small job sends each rank with its evidence. A large job sends evidence only of the ranks that the
judging node asks for, one of each class.

A message has no clock's moments: its times are as if the evidence was taken at `TAKEN_NS`, so that
the reader can move them to its own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.alike import (
    RankSet,
    as_rank,
    common,
    in_words,
    joined,
    joined_families,
    rank_set,
    size,
    without_members,
)
from lightning_hangcheck.judge.job import situation_numbers
from lightning_hangcheck.judge.joining import rebased
from lightning_hangcheck.model.case import Alike, Case, CodeNote, RankName, RankView
from lightning_hangcheck.model.evidence import AddressReach, Gap
from lightning_hangcheck.model.flight import GroupFamily
from lightning_hangcheck.model.run import Round
from lightning_hangcheck.model.verdict import KnownRank, Verdict, WorldSize
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


FOLDED_ABOVE = 256
"""World size above which ranks in the same situation share a line. Evidence of one rank of real
training (Lightning, loaders, three samples) is 40 to 57 kB unpacked: for 1,024 ranks, read each
second, the first node's sidecar needed 230 MB."""
MOST_WAYS = 256
"""Situations that are judged with their evidence: jobs that hang have a handful."""
MOST_NAMES = 32
"""Ranks of one class whose processes are named."""
UNLIKE = 0
"""Situation of a rank that has a line of its own."""
WITHOUT_EVIDENCE = -1
"""Situation of ranks whose evidence was dropped, as there was too much."""
SET = Meta(max_length=131_072)
"""First and last number of each range, for every second rank of a job."""


class BadMessage(Exception):
    """A received message that this version cannot read; the text says why."""


class RankClass(Struct, frozen=True, array_like=True):
    """Ranks in the same situation, or a single rank.

    Attributes:
        standing: The situation's number, `UNLIKE`, or `WITHOUT_EVIDENCE`.
        view: One of the ranks: with evidence if any has it, then the one silent for the shortest
            time. The view has no members of its groups.
        names: Processes of the first of ``ranks``.
        groups: Groups of the view, as in `Alike`.
    """

    standing: int
    view: RankView
    ranks: Annotated[RankSet, SET]
    names: Annotated[tuple[RankName, ...], Meta(max_length=MOST_NAMES)] = ()
    groups: Annotated[tuple[GroupFamily, ...], Meta(max_length=4_096)] = ()

    @property
    def alone(self) -> bool:
        """Whether the class is one rank with a line of its own."""
        return self.standing == UNLIKE


def class_of(view: RankView, groups: tuple[GroupFamily, ...], alike_number: int) -> RankClass:
    """Return one rank as a class of its own."""
    name = RankName(view.rank, view.local_rank, view.host, view.pid)
    names = () if alike_number == UNLIKE else (name,)
    return RankClass(alike_number, view, (view.rank, view.rank), names, groups)


def together(classes: Iterable[RankClass]) -> tuple[RankClass, ...]:
    """Join classes of the same situation and group shapes, ordered by their first ranks."""
    alike: dict[tuple[object, ...], list[RankClass]] = {}
    for rank_class in classes:
        shapes = tuple(family.offsets for family in rank_class.groups)
        key = rank_class.ranks if rank_class.alone else shapes
        alike.setdefault((rank_class.standing, key), []).append(rank_class)
    found = [ones[0] if len(ones) == 1 else _one_of(ones) for ones in alike.values()]
    return tuple(sorted(found, key=lambda rank_class: (rank_class.ranks[0], rank_class.standing)))


def as_view(rank_class: RankClass) -> tuple[RankView, Alike]:
    """Return a class's view, and the ranks for which it stands.

    If the view's rank has left the class, the view becomes that of the first rank.
    """
    view, groups, number = rank_class.view, rank_class.groups, rank_class.view.rank
    if not common((number, number), rank_class.ranks):
        number = rank_class.ranks[0]
        name = next((name for name in rank_class.names if name.rank == number), RankName(number))
        pid = name.pid if name.pid is not None else view.pid
        moved = as_rank(view, groups, number)
        view = replace(moved, local_rank=name.local_rank, host=name.host, pid=pid)
    groups = groups if view.flight is not None else ()
    return view, Alike(
        rank=number, ranks=in_words(rank_class.ranks), names=rank_class.names, groups=groups
    )


def within(classes: Iterable[RankClass], ranks: RankSet) -> tuple[RankClass, ...]:
    """Restrict classes to these ranks; the view stays, even of a rank that is not among them."""
    found = []
    for rank_class in classes:
        left = common(rank_class.ranks, ranks)
        if left == rank_class.ranks:
            found.append(rank_class)
        elif left:
            names = tuple(name for name in rank_class.names if common((name.rank, name.rank), left))
            found.append(replace(rank_class, ranks=left, names=names))
    return tuple(found)


def odd_and_usual(classes: Sequence[RankClass]) -> tuple[list[RankClass], list[RankClass]]:
    """Choose at most `MOST_WAYS` classes whose evidence counts; return the rest, too.

    Half have the most ranks, half the fewest: an odd rank may hold up all others.
    """
    ordered = sorted(classes, key=lambda rank_class: (-size(rank_class.ranks), rank_class.ranks[0]))
    if len(ordered) <= MOST_WAYS:
        return ordered, []
    half = MOST_WAYS // 2
    return ordered[:half] + ordered[-half:], ordered[half:-half]


def bounded(classes: Sequence[RankClass]) -> tuple[tuple[RankClass, ...], int]:
    """Keep evidence as `odd_and_usual` chooses; return also how many ranks lost theirs."""
    kept, rest = odd_and_usual(classes)
    if not rest:
        return tuple(classes), 0
    bare = [
        replace(without_evidence(rank_class), standing=WITHOUT_EVIDENCE, groups=())
        for rank_class in rest
    ]
    return together([*kept, *bare]), sum(size(rank_class.ranks) for rank_class in rest)


def without_evidence(rank_class: RankClass) -> RankClass:
    """Return a class without evidence of looks; its groups stay, as they make ranks alike."""
    return replace(rank_class, view=brief(rank_class.view))


def brief(view: RankView) -> RankView:
    """Return a rank without evidence of looks."""
    if not view.processes and view.flight is None:
        return view
    return replace(view, processes=(), flight=None)


def _one_of(alike: Sequence[RankClass]) -> RankClass:
    ordered = sorted(alike, key=lambda rank_class: rank_class.ranks[0])
    views = [rank_class.view for rank_class in ordered]
    seen = [view for view in views if view.processes or view.flight is not None]
    youngest = min(seen or views, key=lambda view: view.silent_for_s)
    every = {name for rank_class in ordered for name in rank_class.names}
    names = sorted(every, key=lambda name: name.rank)
    paces = [view.pace for view in views if view.pace is not None]
    slowest = max(paces, key=lambda pace: pace.longest_pause_s, default=None)
    view = replace(
        youngest,
        idle_for_s=min(view.idle_for_s for view in views),
        nothing_new_for_s=min(view.nothing_new_for_s for view in views),
        pace=slowest if len(paces) == len(views) else None,
    )
    return RankClass(
        ordered[0].standing,
        view,
        ranks=joined(rank_class.ranks for rank_class in ordered),
        names=tuple(names[:MOST_NAMES]),
        groups=joined_families([rank_class.groups for rank_class in ordered]),
    )


VERSION = 7
TAKEN_NS = 1 << 60
"""36 years: moved by this, no time of a running machine comes near 0, which means that there is no
such time."""
CALM_BELOW_S = 1.5
"""Silence below which a rank sends no stacks and no collectives: a look comes at 2 s."""
TOO_LARGE = Gap("evidence of this node", None, "it is too large to be told", "other")

# Reading limits: several times what the largest job needs, 131,072 ranks on 16,384 nodes.

MOST_OF_A_NODE = 1_024
MOST_GAPS = 64
MOST_CODE = 1_024
MOST_ASKED = 64
"""Addresses of silent nodes: if more nodes are silent, a few are enough."""
MOST_ENDS = 8
"""Ranks of a node whose end is sent: those that ended first, of large jobs only `FEW_ENDS`."""
FEW_ENDS = 2
_ASKED = Meta(max_length=MOST_ASKED)


class RoundMark(Struct, frozen=True):
    """How nodes recognise that their ranks belong to one start of the job, however they count.

    Seconds since torchrun started the ranks, else 0, and the port where they look for their store.
    """

    began_s: float = 0.0
    store_port: int = 0


class LeftRound(Struct, frozen=True, omit_defaults=True):
    """The last round of a node that ended; its ranks that ended first, without evidence."""

    number: int
    world_size: WorldSize = 0
    local_world_size: WorldSize | None = None
    ranks: Annotated[tuple[RankView, ...], Meta(max_length=MOST_ENDS)] = ()


class RoundEnd(Struct, frozen=True):
    """How a round ended on all nodes, as the judging node remembers and reports it."""

    round: Round
    verdict: Verdict


class Judgement(Struct, frozen=True, array_like=True):
    """The judging node's newest verdict on the whole job.

    ``end``: how the round before ended, until that is long ago.
    """

    verdict: Verdict | None = None
    end: RoundEnd | None = None


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node sends about its ranks.

    Attributes:
        version: Version of this format; others are not read.
        stamp: Different in each message.
        ended: The command has ended there: no further message will come.
        world_size: Ranks of the job as the node knows it, 0 if unknown.
        local_world_size: Ranks that should run there, None if no launcher says so.
        machine: As in `RunFacts`.
        software: Version of this package there.
        left: The round before, with times like the ranks'; None once that is long ago.
        reach: What connections show of the addresses that the judging node asks about.
        judgement: Empty if it judges nothing.
        asks: Addresses of nodes that the judging node no longer hears; it ``wants`` ranks'
            evidence.
    """

    version: int
    stamp: int
    node: KnownRank
    ended: bool = False
    round: int = 0
    mark: RoundMark = RoundMark()
    world_size: WorldSize = 0
    local_world_size: WorldSize | None = None
    machine: Annotated[str, Meta(max_length=1_024)] = ""
    addresses: Annotated[tuple[str, ...], _ASKED] = ()
    software: Annotated[str, Meta(max_length=64)] = ""
    lines: Annotated[tuple[RankClass, ...], Meta(max_length=MOST_OF_A_NODE)] = ()
    gaps: Annotated[tuple[Gap, ...], Meta(max_length=4_096)] = ()
    code: Annotated[tuple[CodeNote, ...], Meta(max_length=MOST_CODE)] = ()
    left: LeftRound | None = None
    reach: Annotated[tuple[AddressReach, ...], _ASKED] = ()
    judgement: Judgement = Judgement()
    asks: Annotated[tuple[str, ...], _ASKED] = ()
    wants: Annotated[tuple[KnownRank, ...], Meta(max_length=MOST_WAYS)] = ()

    @property
    def ranks(self) -> RankSet:
        """Ranks in the message."""
        return joined(rank_class.ranks for rank_class in self.lines)


def message_of(
    case: Case,
    node: int,
    stamp: int,
    *,
    wanted: Collection[int] = (),
    left: LeftRound | None = None,
    folded_above: int = FOLDED_ABOVE,
    **facts: object,
) -> Message:
    """Return the case of one node, with its own ranks alone; ``facts`` are other fields.

    ``wanted``: ranks whose evidence is asked for. In a job of more than ``folded_above`` ranks,
    those in the same situation share a line. The stamp differs in each message.
    """
    shift_ns = TAKEN_NS - case.taken_ns
    views = [brief(view) if view.silent_for_s < CALM_BELOW_S else view for view in case.ranks]
    small = case.run.world_size <= folded_above
    standings = [0] * len(views) if small else situation_numbers(views, case.taken_ns)
    lines = together(
        class_of(*without_members(rebased(view, shift_ns)), alike_number)
        for view, alike_number in zip(views, standings, strict=True)
    )
    asked = rank_set(wanted)
    lines = tuple(
        rank_class if small or common(rank_class.ranks, asked) else without_evidence(rank_class)
        for rank_class in lines
    )
    with_evidence = any(rank_class.view.processes for rank_class in lines)
    message = Message(
        version=VERSION,
        node=node,
        stamp=stamp,
        software=__version__,
        round=case.run.round,
        world_size=case.run.world_size,
        local_world_size=case.run.local_world_size,
        machine=case.run.machine,
        lines=lines,
        gaps=tuple(gap for gap in case.gaps if gap.kind != "other_nodes") if with_evidence else (),
        code=case.code[:MOST_CODE] if with_evidence else (),
        left=rebased(left, shift_ns) if left is not None else None,
    )
    return replace(message, **facts)


def left_round(case: Case) -> LeftRound:
    """Return what other nodes need to know of a round that has ended here."""
    ended = [view for view in case.ranks if view.process_exit is not None]
    ended.sort(key=lambda view: view.process_exit.order if view.process_exit is not None else 0)
    most = MOST_ENDS if case.run.world_size <= FOLDED_ABOVE else FEW_ENDS
    ranks = tuple(brief(view) for view in ended[:most])
    return LeftRound(case.run.round, case.run.world_size, case.run.local_world_size, ranks)


def shortened(message: Message) -> Message:
    """Return the message without evidence, for one that is too large to be sent or kept."""
    return replace(
        message,
        lines=tuple(map(without_evidence, message.lines)),
        gaps=(TOO_LARGE,) if message.lines else (),
        code=(),
        left=None,
    )
