"""Process groups of one shape, told as one: a dimension of a device mesh. Pure.

A hundred thousand ranks of a mesh that do the same are each in groups of their own, and all of
these are one group that was moved. So a rank's record is told without the members of its groups,
and beside it where the groups are in which those are that it stands for.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.flight import CollectiveRecord, GroupFamily, GroupRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.case import RankView

    Group = tuple[int, str]
    """First member and name."""

Offsets = tuple[int, ...]
TRIPLE = 3
LONGEST_NUMBER = 18
"""Digits: it has 64 bits then, and Python refuses to read one of 5,000."""


def without_members(view: RankView) -> tuple[RankView, tuple[GroupFamily, ...]]:
    """Take the members out of a rank's record of its groups.

    Args:
        view: Of the rank.

    Returns:
        The view, and for each group of its record in which the rank is; none where no members are
        known.
    """
    flight = view.flight
    if flight is None or not any(one.ranks for one in flight.groups):
        return view, ()
    ordered = in_order(flight.groups)
    bare = tuple(replace(one, ranks=()) if one.ranks else one for one in ordered)
    return replace(view, flight=replace(flight, groups=bare)), tuple(map(_family_of, ordered))


def in_order(groups: Sequence[CollectiveRecord]) -> tuple[CollectiveRecord, ...]:
    """Return a rank's groups in an order that does not hang on their names alone.

    Those at rest come as torch writes them, by the text of their names: ``10`` before ``9``.
    """
    at_rest = iter(sorted(filter(_is_at_rest, groups), key=_shape_and_name))
    return tuple(next(at_rest) if _is_at_rest(one) else one for one in groups)


def offsets_of(record: CollectiveRecord) -> Offsets:
    """Return the shape of a group: its members less the first one, as runs."""
    ranks = record.ranks
    if not ranks:
        return ()
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if step and ranks == tuple(range(ranks[0], ranks[0] + step * len(ranks), step)):
        return (0, step, len(ranks))
    return tuple(_in_runs([rank - ranks[0] for rank in ranks]))


def joined_families(told: Sequence[Sequence[GroupFamily]]) -> tuple[GroupFamily, ...]:
    """Join the groups of ranks that stand alike.

    Args:
        told: Of each of them, or of some already joined; their shapes are equal one by one.
    """
    return tuple(map(_joined, zip(*told, strict=True)))


def groups_in(family: GroupFamily) -> Iterator[Group]:
    """Yield the groups of a family."""
    for run in family.runs:
        number = int(run.name) if run.name_step else 0
        for at in range(run.count):
            name = str(number + at * run.name_step) if run.name_step else run.name
            yield run.first + at * run.step, name


def numbers_in(offsets: Offsets) -> tuple[int, ...]:
    """Return the numbers that runs stand for, in their order."""
    runs = (range(start, start + step * n, step) for start, step, n in _triples(offsets))
    return tuple(chain.from_iterable(runs))


def members_in(family: GroupFamily) -> int:
    """Return how many members the groups of a family have, all together."""
    return sum(family.offsets[2::3]) * sum(run.count for run in family.runs)


def is_number(name: str) -> bool:
    """Whether a name is a number of at most 18 digits that is written as we write it."""
    if len(name) > LONGEST_NUMBER or not (name.isascii() and name.isdecimal()):
        return False
    return str(int(name)) == name


def can_be_families(families: Sequence[GroupFamily], groups: int, most: int) -> bool:
    """Whether what a stranger sent can be the families of a rank's record.

    Args:
        families: What was sent.
        groups: Of the record.
        most: Ranks of a job; so many members a family may have, too.
    """
    return len(families) in (0, groups) and all(_can_be(one, most) for one in families)


def _can_be(family: GroupFamily, most: int) -> bool:
    offsets, runs = family.offsets, family.runs
    if len(offsets) % TRIPLE or not all(map(_is_step, offsets[1::3])):
        return False
    if not all(0 < count <= most for count in (*offsets[2::3], *(run.count for run in runs))):
        return False
    if any(run.name_step and not is_number(run.name) for run in runs):
        return False
    if members_in(family) > most or (bool(offsets) is not bool(runs)):
        return False
    ends = [start + step * (n - 1) for start, step, n in _triples(offsets)]
    lowest, highest = min((*offsets[::3], *ends), default=0), max((*offsets[::3], *ends), default=0)
    firsts = chain.from_iterable(
        (run.first, run.first + run.step * (run.count - 1)) for run in runs
    )
    return all(first + lowest >= 0 and first + highest < most for first in firsts)


def _is_step(step: int) -> bool:
    return step != 0


def _triples(offsets: Offsets) -> Iterator[tuple[int, int, int]]:
    return zip(offsets[::3], offsets[1::3], offsets[2::3], strict=True)


def _is_at_rest(record: CollectiveRecord) -> bool:
    return record.on_device and not record.entries


def _shape_and_name(record: CollectiveRecord) -> tuple[str, Offsets, int, str]:
    return record.description, offsets_of(record), len(record.group), record.group


def _family_of(record: CollectiveRecord) -> GroupFamily:
    if not record.ranks:
        return GroupFamily()
    return GroupFamily(offsets_of(record), (GroupRun(record.ranks[0], 1, 1, record.group),))


def _joined(families: Sequence[GroupFamily]) -> GroupFamily:
    runs = {run for family in families for run in family.runs}
    if len(runs) == len(families[0].runs):
        return families[0]
    every = {group for family in families for group in groups_in(family)}
    return GroupFamily(families[0].offsets, tuple(_group_runs(sorted(every))))


def _group_runs(groups: Sequence[Group]) -> Iterator[GroupRun]:
    numbers = [int(name) if is_number(name) else None for _, name in groups]
    at = 0
    while at < len(groups):
        end, (first, name) = at + 1, groups[at]
        step, apart = 1, 0
        if end < len(groups):
            step, apart = groups[end][0] - first, _apart(groups, numbers, at) or 0
        while (
            end < len(groups)
            and groups[end][0] - groups[end - 1][0] == step
            and _apart(groups, numbers, end - 1) == apart
        ):
            end += 1
        yield GroupRun(first, step, end - at, name, apart if end - at > 1 else 0)
        at = end


def _apart(groups: Sequence[Group], numbers: Sequence[int | None], at: int) -> int | None:
    """Return by how much the next name is larger; None where they are no numbers, and differ."""
    here, following = numbers[at], numbers[at + 1]
    if groups[at][1] == groups[at + 1][1]:
        return 0
    return None if here is None or following is None else following - here


def _in_runs(numbers: Sequence[int]) -> Iterable[int]:
    at = 0
    while at < len(numbers):
        end = at + 1
        step = numbers[end] - numbers[at] if end < len(numbers) else 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        yield from (numbers[at], step or 1, end - at)
        at = end
