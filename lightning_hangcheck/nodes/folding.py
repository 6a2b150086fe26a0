"""Ranks that stand alike, told once: one of them with its evidence, the others as a set. Pure.

What makes ranks alike, the node that saw them says by a number; here equal numbers only meet. So a
digest of a hundred thousand ranks has as much evidence as they have ways to stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.gather.alike_records import as_rank
from lightning_hangcheck.gather.group_families import joined_families
from lightning_hangcheck.gather.rank_set import RankSet, common, in_words, joined, size
from lightning_hangcheck.model.case import Alike, Pace, RankName, RankView
from lightning_hangcheck.model.flight import GroupFamily
from lightning_hangcheck.nodes.bounds import (
    GROUPS,
    LEAVES,
    MOST_NAMES,
    MOST_WAYS,
    NAMES,
    SET,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FOLDED_ABOVE = 256
"""Ranks of a job above which those that stand alike are folded; below, each is told by itself. The
evidence of one rank of real training (Lightning, loaders, three samples) is 40 to 57 kB unpacked:
that of 1,024, read each second, was 230 MB in the first node's sidecar."""
WITHOUT_EVIDENCE = -1
"""The standing of ranks of whose evidence there was too much."""


class RankDigest(Struct, frozen=True, array_like=True):
    """A rank as its node sees it.

    Attributes:
        view: Without the frames of its stacks, and without the members of its groups.
        leaves: Of each stack, in the order of the view's processes, samples and threads, its last
            node in the tree.
        groups: For each group of its record, as in `Alike`.
    """

    view: RankView
    leaves: Annotated[tuple[int, ...], LEAVES] = ()
    groups: Annotated[tuple[GroupFamily, ...], GROUPS] = ()


class FoldedRanks(Struct, frozen=True, array_like=True):
    """Ranks that stand alike.

    Attributes:
        standing: A number that only they have, or `WITHOUT_EVIDENCE`.
        told: One of them, that which was silent for the shortest time; so are its other silences.
        ranks: All of them, it included.
        names: Which processes the first of them are.
    """

    standing: int
    told: RankDigest
    ranks: Annotated[RankSet, SET]
    names: Annotated[tuple[RankName, ...], NAMES] = ()


def folded(told: RankDigest, standing: int) -> FoldedRanks:
    """Return one rank as a fold of its own."""
    view = told.view
    name = RankName(view.rank, view.local_rank, view.host, view.pid)
    return FoldedRanks(standing, told, (view.rank, view.rank), (name,))


def together(folds: Iterable[FoldedRanks]) -> tuple[FoldedRanks, ...]:
    """Join those of equal standing; in the order of their first ranks."""
    alike: dict[tuple[object, ...], list[FoldedRanks]] = {}
    for one in folds:
        shapes = tuple(family.offsets for family in one.told.groups)
        alike.setdefault((one.standing, shapes), []).append(one)
    found = [ones[0] if len(ones) == 1 else _one_of(ones) for ones in alike.values()]
    return tuple(sorted(found, key=lambda one: (one.ranks[0], one.standing)))


def alike_of(fold: FoldedRanks) -> Alike:
    """Return for whom a fold's view stands, under the number that `first_view` gives it."""
    ranks = in_words(fold.ranks)
    return Alike(rank=_number(fold), ranks=ranks, names=fold.names, groups=fold.told.groups)


def first_view(fold: FoldedRanks) -> RankView:
    """Return a fold's view; where its rank is no longer among them, as that of the first one."""
    view, number = fold.told.view, _number(fold)
    if view.rank == number:
        return view
    name = next((one for one in fold.names if one.rank == number), RankName(number))
    pid = name.pid if name.pid is not None else view.pid
    moved = as_rank(view, fold.told.groups, number)
    return replace(moved, local_rank=name.local_rank, host=name.host, pid=pid)


def _number(fold: FoldedRanks) -> int:
    rank = fold.told.view.rank
    return rank if common((rank, rank), fold.ranks) else fold.ranks[0]


def within(folds: Iterable[FoldedRanks], ranks: RankSet) -> tuple[FoldedRanks, ...]:
    """Return what folds tell of these ranks alone; one whose view stays may not be among them."""
    found = []
    for one in folds:
        left = common(one.ranks, ranks)
        if left:
            names = tuple(name for name in one.names if common((name.rank, name.rank), left))
            found.append(replace(one, ranks=left, names=names))
    return tuple(found)


def told_ranks(folds: Iterable[FoldedRanks]) -> int:
    """Count the ranks that folds tell of."""
    return sum(size(one.ranks) for one in folds)


def bounded(folds: Sequence[FoldedRanks]) -> tuple[tuple[FoldedRanks, ...], int]:
    """Keep the evidence of no more than `MOST_WAYS` ways to stand.

    Half of them are those in which most ranks stand, half those in which fewest do: an odd one may
    be what holds all others up.

    Returns:
        The folds, and how many ranks lost their evidence.
    """
    if len(folds) <= MOST_WAYS:
        return tuple(folds), 0
    ordered = sorted(folds, key=lambda one: (-size(one.ranks), one.ranks[0]))
    half = MOST_WAYS // 2
    kept, rest = ordered[:half] + ordered[-half:], ordered[half:-half]
    return together([*kept, *map(without_evidence, rest)]), told_ranks(rest)


def without_evidence(fold: FoldedRanks) -> FoldedRanks:
    """Return a fold without what looks brought."""
    return replace(fold, standing=WITHOUT_EVIDENCE, told=RankDigest(brief(fold.told.view)))


def brief(view: RankView) -> RankView:
    """Return a rank without what looks brought."""
    return replace(view, processes=(), flight=None)


def _one_of(alike: Sequence[FoldedRanks]) -> FoldedRanks:
    ordered = sorted(alike, key=lambda one: one.ranks[0])
    views = [one.told.view for one in ordered]
    youngest = min(ordered, key=lambda one: one.told.view.silent_for_s)
    names = sorted({name for one in ordered for name in one.names}, key=lambda name: name.rank)
    view = replace(
        youngest.told.view,
        idle_for_s=min(view.idle_for_s for view in views),
        nothing_new_for_s=min(view.nothing_new_for_s for view in views),
        pace=_slowest([view.pace for view in views]),
    )
    return replace(
        youngest,
        told=replace(
            youngest.told, view=view, groups=joined_families([one.told.groups for one in ordered])
        ),
        ranks=joined(one.ranks for one in ordered),
        names=tuple(names[:MOST_NAMES]),
    )


def _slowest(paces: Sequence[Pace | None]) -> Pace | None:
    known = [pace for pace in paces if pace is not None]
    return max(known, key=lambda pace: pace.longest_pause_s) if len(known) == len(paces) else None
