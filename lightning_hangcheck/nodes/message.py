"""What a node tells the others: who it is, a line for each rank, evidence where asked. Pure.

Ranks of a large job that stand alike share one line: what makes them alike, `judge.job` says
by a number; here equal numbers only meet. So a job of a hundred thousand ranks has as much evidence
as they have ways to stand. Of jobs of few ranks each rank is told with its evidence; of large ones
only those that the judging node asks for, one of each class.

No moment of any clock is in it: times are told as if the evidence had been taken at `TAKEN_NS`, so
that whoever reads it can put them on a clock of its own.
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
from lightning_hangcheck.model.evidence import AddressReach, Frame, Gap, ThreadStack
from lightning_hangcheck.model.flight import GroupFamily
from lightning_hangcheck.model.run import Round
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


FOLDED_ABOVE = 256
"""Ranks of a job above which those that stand alike are one; below, each is told by itself. The
evidence of one rank of real training (Lightning, loaders, three samples) is 40 to 57 kB unpacked:
that of 1,024, read each second, was 230 MB in the first node's sidecar."""
MOST_WAYS = 256
"""Ways to stand that are judged with their evidence: jobs that hang have a handful."""
MOST_NAMES = 32
"""Ranks of one way to stand whose processes are named."""
UNLIKE = 0
"""The standing of a rank that is told by itself."""
WITHOUT_EVIDENCE = -1
"""The standing of ranks of whose evidence there was too much."""
LEAVES = Meta(max_length=16_384)
"""Stacks of a rank with its workers: three samples of 5,000 threads."""
SET = Meta(max_length=131_072)
"""A first and a last number for every second rank of a job."""


class BadMessage(Exception):
    """What was sent is no message that this version reads; the sentence says why."""


class RankClass(Struct, frozen=True, array_like=True):
    """Ranks that stand alike, or one that does not.

    Attributes:
        standing: A number that only they have, `UNLIKE`, or `WITHOUT_EVIDENCE`.
        view: One of them, with evidence if any has it, that which was silent for the shortest time.
            It has no members of its groups, and while it travels no stacks.
        names: Which processes the first of ``ranks`` are.
        groups: Of the view, as in `Alike`.
        stacks: Numbers of the view's, in the order of processes, samples, threads.
    """

    standing: int
    view: RankView
    ranks: Annotated[RankSet, SET]
    names: Annotated[tuple[RankName, ...], Meta(max_length=MOST_NAMES)] = ()
    groups: Annotated[tuple[GroupFamily, ...], Meta(max_length=4_096)] = ()
    stacks: Annotated[tuple[int, ...], LEAVES] = ()

    @property
    def alone(self) -> bool:
        """Whether it is one rank that is told by itself."""
        return self.standing == UNLIKE


def class_of(view: RankView, groups: tuple[GroupFamily, ...], alike_number: int) -> RankClass:
    """Return one rank as a class of its own."""
    name = RankName(view.rank, view.local_rank, view.host, view.pid)
    names = () if alike_number == UNLIKE else (name,)
    return RankClass(alike_number, view, (view.rank, view.rank), names, groups)


def together(classes: Iterable[RankClass]) -> tuple[RankClass, ...]:
    """Join those of equal standing, whose groups have one shape; in the order of first ranks."""
    alike: dict[tuple[object, ...], list[RankClass]] = {}
    for rank_class in classes:
        shapes = tuple(family.offsets for family in rank_class.groups)
        key = rank_class.ranks if rank_class.alone else shapes
        alike.setdefault((rank_class.standing, key), []).append(rank_class)
    found = [ones[0] if len(ones) == 1 else _one_of(ones) for ones in alike.values()]
    return tuple(sorted(found, key=lambda rank_class: (rank_class.ranks[0], rank_class.standing)))


def as_view(rank_class: RankClass) -> tuple[RankView, Alike]:
    """Return a class's view, and for whom it stands.

    Where the view's rank is no longer among them, it is as that of the first one.
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
    """Return what classes tell of these ranks alone; one whose view stays may not be among them."""
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
    """Choose no more than `MOST_WAYS` classes whose evidence counts, and return the rest, too.

    Half are those of most ranks, half those of fewest: an odd one may hold all others up.
    """
    ordered = sorted(classes, key=lambda rank_class: (-size(rank_class.ranks), rank_class.ranks[0]))
    if len(ordered) <= MOST_WAYS:
        return ordered, []
    half = MOST_WAYS // 2
    return ordered[:half] + ordered[-half:], ordered[half:-half]


def bounded(classes: Sequence[RankClass]) -> tuple[tuple[RankClass, ...], int]:
    """Keep the evidence of the odd and the usual ones; return also how many ranks lost theirs."""
    kept, rest = odd_and_usual(classes)
    if not rest:
        return tuple(classes), 0
    bare = [
        replace(without_evidence(rank_class), standing=WITHOUT_EVIDENCE, groups=())
        for rank_class in rest
    ]
    return together([*kept, *bare]), sum(size(rank_class.ranks) for rank_class in rest)


def without_evidence(rank_class: RankClass) -> RankClass:
    """Return a class without what looks brought; its groups stay: by them ranks are alike."""
    return replace(rank_class, view=brief(rank_class.view), stacks=())


def brief(view: RankView) -> RankView:
    """Return a rank without what looks brought."""
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


VERSION = 6
TAKEN_NS = 1 << 60
"""36 years: neither before nor after it a time of a running machine comes near 0, which says that
there is no such time."""
CALM_BELOW_S = 1.5
"""Silence below which a rank tells no stacks and no collectives: a look comes at 2 s."""
TOO_LARGE = Gap("evidence of this node", None, "it is too large to be told", "other")

# How much of each is read: some times what the largest job needs, 131,072 ranks on 16,384 nodes.

MOST_RANKS = 1 << 20
MOST_OF_A_NODE = 1_024
MOST_GAPS = 64
MOST_CODE = 1_024
MOST_ASKED = 64
"""Addresses of silent nodes: where more fell silent, a few tell enough."""
MOST_ENDS = 8
"""Ranks of a node whose end is told: those that ended first, and of large jobs only two."""
FEW_ENDS = 2
_ASKED = Meta(max_length=MOST_ASKED)
_STACKS = Meta(max_length=1 << 16)
_DEPTH = Meta(max_length=1_024)
"""Python's own limit for calls within each other is 1,000."""


class RoundMark(Struct, frozen=True):
    """By what nodes know that their ranks are of one start of the job, however they count it.

    Seconds since torchrun started them, else 0, and at which port they look for their store.
    """

    began_s: float = 0.0
    store_port: int = 0


class ReadMessage(Struct, frozen=True, array_like=True):
    """Which message of the judging node was read last: node, stamp."""

    judge: int = -1
    stamp: int = 0


class LeftRound(Struct, frozen=True, omit_defaults=True):
    """The round of a node that ended last; its ranks that ended first, without evidence."""

    number: int
    world_size: int = 0
    local_world_size: int | None = None
    ranks: Annotated[tuple[RankView, ...], Meta(max_length=MOST_ENDS)] = ()


class RoundEnd(Struct, frozen=True):
    """How a round ended on all nodes, as the judging node remembers it, and as it is told."""

    round: Round
    verdict: Verdict


class Judgement(Struct, frozen=True, array_like=True):
    """What the judging node says of the whole job: the newest verdict that it told.

    And how the round before ended, until that is long ago.
    """

    verdict: Verdict | None = None
    end: RoundEnd | None = None

    @property
    def kind(self) -> str:
        """What the verdict is; empty where there is none."""
        return self.verdict.verdict if self.verdict is not None else ""


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node tells of its ranks, and of what it has read.

    Attributes:
        version: Of this form; another one is not read.
        stamp: Another one each time.
        ended: The command has ended there: nothing more will be heard.
        world_size: Ranks of the job as the node knows it, 0 while unknown.
        local_world_size: Ranks that should run there, None where no launcher says so.
        machine: As in `RunFacts`.
        software: Version of this package there.
        frames: Each call of their stacks once; ``stacks`` are its numbers, outermost first.
        left: The round before, times as those of the ranks; None once that is long ago.
        reach: What connections show of the addresses that the judging node ``asks`` about: those of
            nodes that it no longer hears. It ``wants`` the evidence of ranks.
        read: The newest message of the judging node that it has read.
        judgement: What it judges for all, as msgpack; empty where it judges nothing.
        known: All nodes that it hears have read a verdict of that kind.
    """

    version: int
    stamp: int
    node: int
    ended: bool = False
    round: int = 0
    mark: RoundMark = RoundMark()
    world_size: int = 0
    local_world_size: int | None = None
    machine: Annotated[str, Meta(max_length=1_024)] = ""
    addresses: Annotated[tuple[str, ...], _ASKED] = ()
    software: Annotated[str, Meta(max_length=64)] = ""
    lines: Annotated[tuple[RankClass, ...], Meta(max_length=MOST_OF_A_NODE)] = ()
    frames: Annotated[tuple[Frame, ...], _STACKS] = ()
    stacks: Annotated[tuple[Annotated[tuple[int, ...], _DEPTH], ...], _STACKS] = ()
    gaps: Annotated[tuple[Gap, ...], Meta(max_length=4_096)] = ()
    code: Annotated[tuple[CodeNote, ...], Meta(max_length=MOST_CODE)] = ()
    left: LeftRound | None = None
    reach: Annotated[tuple[AddressReach, ...], _ASKED] = ()
    read: ReadMessage = ReadMessage()
    judgement: bytes = b""
    known: bool = False
    asks: Annotated[tuple[str, ...], _ASKED] = ()
    wants: Annotated[tuple[int, ...], Meta(max_length=MOST_WAYS)] = ()

    @property
    def ranks(self) -> RankSet:
        """Those of which it tells."""
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
    """Tell the case of one node, with its own ranks alone; ``facts`` are other fields of `Message`.

    Of ``wanted`` ranks evidence is asked for. In a job of more than ``folded_above`` ranks those
    that stand alike share a line. The stamp is another one each time.
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
    return replace(with_table(message), **facts)


def left_round(case: Case) -> LeftRound:
    """Return what other nodes are to know of a round that has ended here."""
    ended = [view for view in case.ranks if view.process_exit is not None]
    ended.sort(key=lambda view: view.process_exit.order if view.process_exit is not None else 0)
    most = MOST_ENDS if case.run.world_size <= FOLDED_ABOVE else FEW_ENDS
    ranks = tuple(brief(view) for view in ended[:most])
    return LeftRound(case.run.round, case.run.world_size, case.run.local_world_size, ranks)


def shortened(message: Message) -> Message:
    """Return the message without evidence, where it would be too large to be told or kept."""
    return replace(
        message,
        lines=tuple(map(without_evidence, message.lines)),
        frames=(),
        stacks=(),
        gaps=(TOO_LARGE,) if message.lines else (),
        code=(),
        left=None,
    )


# Stacks: each call and each stack is told once.


def with_table(message: Message) -> Message:
    """Move the stacks of the lines into the message's table."""
    frames: dict[Frame, int] = {}
    stacks: dict[tuple[Frame, ...], int] = {}
    lines = []
    for rank_class in message.lines:
        numbers: list[int] = []

        def moved(stack: ThreadStack, numbers: list[int] = numbers) -> ThreadStack:
            for frame in stack.frames:
                frames.setdefault(frame, len(frames))
            numbers.append(stacks.setdefault(stack.frames, len(stacks)))
            return replace(stack, frames=())

        view = _with_stacks(rank_class.view, moved)
        lines.append(replace(rank_class, view=view, stacks=tuple(numbers)))
    table = tuple(tuple(frames[frame] for frame in stack) for stack in stacks)
    return replace(message, lines=tuple(lines), frames=tuple(frames), stacks=table)


def without_table(message: Message) -> Message:
    """Give the lines of a message their stacks back; BadMessage where these are not as is told."""
    if any(not 0 <= call < len(message.frames) for stack in message.stacks for call in stack):
        raise BadMessage("a stack has a call that is not there")
    stacks = [tuple(message.frames[call] for call in stack) for stack in message.stacks]
    lines = []
    for rank_class in message.lines:
        left = list(rank_class.stacks[::-1])

        def found(stack: ThreadStack, left: list[int] = left) -> ThreadStack:
            if not left or not 0 <= left[-1] < len(stacks):
                raise BadMessage("a rank has a stack that is not there")
            return replace(stack, frames=stacks[left.pop()])

        view = _with_stacks(rank_class.view, found)
        if left:
            raise BadMessage("a rank has other stacks than are told of it")
        lines.append(replace(rank_class, view=view, stacks=()))
    return replace(message, lines=tuple(lines), frames=(), stacks=())


def _with_stacks(view: RankView, change: Callable[[ThreadStack], ThreadStack]) -> RankView:
    """Change each stack, in the order of processes, samples and threads."""
    if not view.processes:
        return view
    looks = []
    for look in view.processes:
        samples = []
        for sample in look.samples:
            if sample.stack is not None:
                threads = tuple(map(change, sample.stack.threads))
                sample = replace(sample, stack=replace(sample.stack, threads=threads))
            samples.append(sample)
        looks.append(replace(look, samples=tuple(samples)))
    return replace(view, processes=tuple(looks))
