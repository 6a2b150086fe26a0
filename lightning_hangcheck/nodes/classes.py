"""Ranks that stand alike, as one: the evidence of one of them, the others as a set. Pure.

What makes ranks alike, `judge.standing` says by a number; here equal numbers only meet. So a job of
a hundred thousand ranks has as much evidence as they have ways to stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.alike import as_rank, joined_families
from lightning_hangcheck.judge.rank_set import RankSet, common, in_words, joined, size
from lightning_hangcheck.model.case import Alike, RankName, RankView
from lightning_hangcheck.model.flight import GroupFamily

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


class RankLine(Struct, frozen=True, array_like=True):
    """A rank as its node sees it.

    Attributes:
        view: Without the members of its groups, and while it travels without its stacks.
        stacks: While it travels, the number of each, in the order of processes, samples, threads.
        groups: For each group of its record, as in `Alike`.
    """

    view: RankView
    stacks: Annotated[tuple[int, ...], LEAVES] = ()
    groups: Annotated[tuple[GroupFamily, ...], Meta(max_length=4_096)] = ()


class RankClass(Struct, frozen=True, array_like=True):
    """Ranks that stand alike, or one that does not.

    Attributes:
        standing: A number that only they have, `UNLIKE`, or `WITHOUT_EVIDENCE`.
        told: One of them, with evidence if any has it, that which was silent for the shortest time.
        ranks: All of them, it included.
        names: Which processes the first of them are.
    """

    standing: int
    told: RankLine
    ranks: Annotated[RankSet, SET]
    names: Annotated[tuple[RankName, ...], Meta(max_length=MOST_NAMES)] = ()

    @property
    def alone(self) -> bool:
        """Whether it is one rank that is told by itself."""
        return self.standing == UNLIKE


def class_of(view: RankView, groups: tuple[GroupFamily, ...], standing: int) -> RankClass:
    """Return one rank as a class of its own."""
    name = RankName(view.rank, view.local_rank, view.host, view.pid)
    names = () if standing == UNLIKE else (name,)
    return RankClass(standing, RankLine(view, (), groups), (view.rank, view.rank), names)


def together(classes: Iterable[RankClass]) -> tuple[RankClass, ...]:
    """Join those of equal standing; in the order of their first ranks."""
    alike: dict[tuple[object, ...], list[RankClass]] = {}
    for one in classes:
        alike.setdefault(way_of(one), []).append(one)
    found = [ones[0] if len(ones) == 1 else _one_of(ones) for ones in alike.values()]
    return tuple(sorted(found, key=lambda one: (one.ranks[0], one.standing)))


def way_of(one: RankClass) -> tuple[object, ...]:
    """Return what is equal for classes that are one."""
    if one.alone:
        return one.standing, one.ranks
    return one.standing, tuple(family.offsets for family in one.told.groups)


def alike_of(one: RankClass) -> Alike:
    """Return for whom a class's view stands, under the number that `first_view` gives it."""
    groups = one.told.groups if one.told.view.flight is not None else ()
    return Alike(rank=_number(one), ranks=in_words(one.ranks), names=one.names, groups=groups)


def first_view(one: RankClass) -> RankView:
    """Return a class's view; where its rank is no longer among them, as that of the first one."""
    view, number = one.told.view, _number(one)
    if view.rank == number:
        return view
    name = next((name for name in one.names if name.rank == number), RankName(number))
    pid = name.pid if name.pid is not None else view.pid
    moved = as_rank(view, one.told.groups, number)
    return replace(moved, local_rank=name.local_rank, host=name.host, pid=pid)


def _number(one: RankClass) -> int:
    rank = one.told.view.rank
    return rank if common((rank, rank), one.ranks) else one.ranks[0]


def within(classes: Iterable[RankClass], ranks: RankSet) -> tuple[RankClass, ...]:
    """Return what classes tell of these ranks alone; one whose view stays may not be among them."""
    found = []
    for one in classes:
        left = common(one.ranks, ranks)
        if left == one.ranks:
            found.append(one)
        elif left:
            names = tuple(name for name in one.names if common((name.rank, name.rank), left))
            found.append(replace(one, ranks=left, names=names))
    return tuple(found)


def odd_and_usual(classes: Sequence[RankClass]) -> tuple[list[RankClass], list[RankClass]]:
    """Choose no more than `MOST_WAYS` classes whose evidence counts, and return the rest, too.

    Half are those of most ranks, half those of fewest: an odd one may hold all others up.
    """
    ordered = sorted(classes, key=lambda one: (-size(one.ranks), one.ranks[0]))
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
        replace(without_evidence(one), standing=WITHOUT_EVIDENCE, names=one.names) for one in rest
    ]
    bare = [replace(one, told=RankLine(one.told.view)) for one in bare]
    return together([*kept, *bare]), sum(size(one.ranks) for one in rest)


def without_evidence(one: RankClass) -> RankClass:
    """Return a class without what looks brought; its groups stay: by them ranks are alike."""
    return replace(one, told=RankLine(brief(one.told.view), (), one.told.groups))


def brief(view: RankView) -> RankView:
    """Return a rank without what looks brought."""
    if not view.processes and view.flight is None:
        return view
    return replace(view, processes=(), flight=None)


def _one_of(alike: Sequence[RankClass]) -> RankClass:
    ordered = sorted(alike, key=lambda one: one.ranks[0])
    views = [one.told.view for one in ordered]
    told = [(one, one.told.view) for one in ordered]
    seen = [one for one, view in told if view.processes or view.flight is not None]
    youngest = min(seen or ordered, key=lambda one: one.told.view.silent_for_s)
    names = sorted({name for one in ordered for name in one.names}, key=lambda name: name.rank)
    paces = [view.pace for view in views if view.pace is not None]
    slowest = max(paces, key=lambda pace: pace.longest_pause_s, default=None)
    view = replace(
        youngest.told.view,
        idle_for_s=min(view.idle_for_s for view in views),
        nothing_new_for_s=min(view.nothing_new_for_s for view in views),
        pace=slowest if len(paces) == len(views) else None,
    )
    groups = joined_families([one.told.groups for one in ordered])
    return replace(
        youngest,
        told=RankLine(view, (), groups),
        ranks=joined(one.ranks for one in ordered),
        names=tuple(names[:MOST_NAMES]),
    )
