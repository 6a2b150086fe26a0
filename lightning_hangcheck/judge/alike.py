"""Ranks that are in the same situation are described by one of them. Pure.

Same situation means equal stacks and groups of one shape. Sets of ranks are stored as ranges and
joined without listing members. In a device mesh, a hundred thousand ranks that do the same are each
in groups of their own, and these groups are one group shifted. So a rank's record is sent without
the members of its groups, together with the groups of the ranks that it stands for (`GroupFamily`).
Each rank's own record is rebuilt from these, with groups, peers and roots shifted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from lightning_hangcheck.model.code_owner import is_ours, is_standard
from lightning_hangcheck.model.flight import CollectiveRecord, GroupFamily, GroupRun
from lightning_hangcheck.model.verdict import StackGroup
from lightning_hangcheck.text.shown import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.evidence import Frame, ProcessLook, ProcessStack, ThreadStack
    from lightning_hangcheck.model.flight import CallSite, FlightRecord

Frames = tuple["Frame", ...]
RankSet = tuple[int, ...]
"""First and last number of each range, ascending: ``(0, 6, 8, 8)`` is 0 to 6, and 8."""
Offsets = tuple[int, ...]
"""The shape of a group: its members minus the first one, as start, step and count of each run."""
GROUPS_KEPT = 131_072
"""Groups whose members are remembered: equal groups share one object."""
AROUND_OURS = re.compile(r"/(wrapt/\w+|contextlib)\.py$")
"""Files of our wrappers and context managers: their frames lead to our frames."""
LONGEST_NUMBER = 18
"""Digits of a number with 64 bits; Python refuses to read a number of 5,000."""


def group_stacks(case: Case) -> tuple[tuple[StackGroup, ...], Mapping[int, int]]:
    """Merge equal main-thread stacks of ranks, and of their workers.

    Stacks are equal if function, file and line of every frame are; our own frames do not count.

    Returns:
        The groups, largest first, numbered from 0; and each rank's group, if its stack is known.
    """
    members: dict[tuple[Literal["rank", "worker"], Frames], list[int]] = {}
    alike = {alike_ranks.rank: parse_ranks(alike_ranks.ranks) for alike_ranks in case.alike}
    for view in {view.rank: view for view in reversed(case.ranks)}.values():
        for look in view.processes:
            frames = shown_frames(latest_frames(look))
            if frames and look.role != "child":
                process: Literal["rank", "worker"] = "rank" if look.role == "rank" else "worker"
                standing_alike = alike.get(view.rank, (view.rank,))
                members.setdefault((process, frames), []).extend(standing_alike)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), item[0][0], min(item[1])))
    numbers: dict[int, int] = {}
    for number, ((process, _), ranks) in enumerate(ordered):
        if process == "rank":
            numbers.update(dict.fromkeys(ranks, number))
    groups = tuple(
        StackGroup(
            id=number,
            process=process,
            ranks=format_ranks(ranks),
            count=len(ranks),
            frames=tuple(map(str, frames)),
        )
        for number, ((process, frames), ranks) in enumerate(ordered)
    )
    return groups, numbers


def latest_frames(look: ProcessLook) -> Frames:
    """Return a process's newest main-thread frames, outermost first; empty if none were taken."""
    for sample in reversed(look.samples):
        if sample.stack is not None and sample.stack.threads:
            return sample.stack.threads[0].frames
    return ()


def shown_frames(frames: Sequence[Frame]) -> Frames:
    """Leave out our own frames and those that only lead to them: no user wrote or can fix them."""
    shown: list[Frame] = []
    for frame in frames:
        if not is_ours(frame.file):
            shown.append(frame)
            continue
        while shown and AROUND_OURS.search(shown[-1].file):
            shown.pop()
    return tuple(shown)


def shown_threads(stack: ProcessStack) -> tuple[ThreadStack, ...]:
    """Return a process's threads without our own frames and without threads that we started."""
    return tuple(
        replace(thread, frames=shown)
        for thread in stack.threads
        for shown in [shown_frames(thread.frames)]
        if thread is stack.threads[0]
        or shown == thread.frames
        or not all(is_standard(frame.file) for frame in shown)
    )


# Groups of one shape: a dimension of a device mesh


def without_members(view: RankView) -> tuple[RankView, tuple[GroupFamily, ...]]:
    """Remove the members of groups from a rank's record; return them as families."""
    flight = view.flight
    if flight is None or not any(record.ranks for record in flight.groups):
        return view, ()
    ordered = in_order(flight.groups)
    families = tuple(
        GroupFamily(offsets_of(record), (GroupRun(record.ranks[0], 1, 1, record.group),))
        if record.ranks
        else GroupFamily()
        for record in ordered
    )
    bare = tuple(replace(record, ranks=()) for record in ordered)
    return replace(view, flight=replace(flight, groups=bare)), families


def in_order(groups: Sequence[CollectiveRecord]) -> tuple[CollectiveRecord, ...]:
    """Order a rank's groups by more than their names: torch writes ``10`` before ``9``."""

    def rests(record: CollectiveRecord) -> bool:
        return record.on_device and not record.entries

    def key(record: CollectiveRecord) -> tuple[Hashable, ...]:
        return record.description, offsets_of(record), len(record.group), record.group

    at_rest = iter(sorted(filter(rests, groups), key=key))
    return tuple(next(at_rest) if rests(record) else record for record in groups)


def offsets_of(record: CollectiveRecord) -> Offsets:
    """Return the shape of a group; empty if its members are unknown."""
    ranks = record.ranks
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 0
    if step and ranks == tuple(range(ranks[0], ranks[0] + step * len(ranks), step)):
        return (0, step, len(ranks))  # the usual case, and such groups may be large
    steps = [after - rank or None for rank, after in pairwise(ranks)]
    found: list[int] = []
    for start, end in _stretches(steps) if ranks else ():
        step = steps[start] or 1 if end - start > 1 else 1
        found += (ranks[start] - ranks[0], step, end - start)
    return tuple(found)


def joined_families(told_families: Sequence[Sequence[GroupFamily]]) -> tuple[GroupFamily, ...]:
    """Join the groups of ranks in the same situation: equal distances, names with equal steps."""
    found: list[GroupFamily] = []
    for families in zip(*told_families, strict=True):
        every = sorted({group for family in set(families) for group in groups_in(family)})
        steps: list[tuple[int, int] | None] = []
        for (first, name), (after, following) in pairwise(every):
            numbers = is_number(name) and is_number(following)
            apart = int(following) - int(name) if numbers else 0
            steps.append((after - first, apart) if numbers or name == following else None)
        runs: list[GroupRun] = []
        for start, end in _stretches(steps) if every else ():
            step, apart = (steps[start] if end - start > 1 else None) or (1, 0)
            runs.append(GroupRun(every[start][0], step, end - start, every[start][1], apart))
        found.append(GroupFamily(families[0].offsets, tuple(runs)))
    return tuple(found)


def _stretches(steps: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each stretch of items with equal steps between them (None ends it)."""
    start = 0
    while start <= len(steps):
        end = start + 1
        if start < len(steps) and steps[start] is not None:
            while end <= len(steps) and steps[end - 1] == steps[start]:
                end += 1
        yield start, end
        start = end


def groups_in(family: GroupFamily) -> Iterator[tuple[int, str]]:
    """Yield first member and name of each group of a family."""
    for run in family.runs:
        number = int(run.name) if run.name_step else 0
        for at in range(run.count):
            name = str(number + at * run.name_step) if run.name_step else run.name
            yield run.first + at * run.step, name


@lru_cache(maxsize=GROUPS_KEPT)
def group_members(offsets: Offsets, first: int) -> tuple[int, ...]:
    """Return the members of a group by its shape and first member."""
    runs = (range(start, start + step * n, step) for start, step, n in _triples(offsets))
    return tuple(first + offset for offset in chain.from_iterable(runs))


def members_in(family: GroupFamily) -> int:
    """Return how many members the groups of a family have, all together."""
    return sum(family.offsets[2::3]) * sum(run.count for run in family.runs)


def is_number(name: str) -> bool:
    """Whether a name is a plain decimal number of at most 18 digits."""
    if len(name) > LONGEST_NUMBER or not (name.isascii() and name.isdecimal()):
        return False
    return str(int(name)) == name


def can_be_families(families: Sequence[GroupFamily], groups: int, most: int) -> bool:
    """Whether received data can be the families of a rank's record.

    Args:
        families: The received data.
        groups: Number of groups in the record.
        most: Number of ranks of the job, which bounds the members of a family too.
    """

    def can_be(family: GroupFamily) -> bool:
        offsets, runs = family.offsets, family.runs
        counts = (*offsets[2::3], *(run.count for run in runs))
        if len(offsets) % 3 or 0 in offsets[1::3] or not all(0 < count <= most for count in counts):
            return False
        if any(run.name_step and not is_number(run.name) for run in runs):
            return False
        if members_in(family) > most or (bool(offsets) is not bool(runs)):
            return False
        ends = [0, *offsets[::3], *(start + step * (n - 1) for start, step, n in _triples(offsets))]
        firsts = [run.first + run.step * at for run in runs for at in (0, run.count - 1)]
        return all(first + min(ends) >= 0 and first + max(ends) < most for first in firsts)

    return len(families) in (0, groups) and all(map(can_be, families))


def _triples(offsets: Offsets) -> Iterator[tuple[int, int, int]]:
    return zip(offsets[::3], offsets[1::3], offsets[2::3], strict=True)


# The record of each rank that another rank stands for: its own groups and peers


def alike_records(
    flight: FlightRecord, rank: int, families: Sequence[GroupFamily], ranks: Collection[int]
) -> dict[int, FlightRecord]:
    """Rebuild the record of each of ``ranks``, which are in the same situation as ``rank``.

    Ranks of one group share one record object, so a hundred thousand ranks have some thousands.

    Args:
        flight: The record of ``rank``; groups with a family name no members in it.
        rank: The rank that was described.
        families: As in `Alike`.
        ranks: The ranks whose records are wanted.
    """
    everyone = {rank, *ranks}
    padded = [*families, *[None] * (len(flight.groups) - len(families))]
    of_ranks = [
        _of_group(record, family, everyone)
        for record, family in zip(flight.groups, padded, strict=True)
    ]
    rooted = {
        site: own
        for record, own in zip(flight.groups, of_ranks, strict=True)
        for site in _rooted_sites(flight, record, own[rank].ranks if rank in own else ())
    }
    sites_of: dict[tuple[int, ...], dict[int, CallSite]] = {(): flight.sites}

    def record_of(own_rank: int) -> FlightRecord:
        groups = tuple(own[own_rank] for own in of_ranks if own_rank in own)
        messages = flight.messages
        if messages is not None and own_rank != rank:
            messages = replace(messages, moved=messages.moved + own_rank - rank)
        moved = tuple(
            own[own_rank].ranks[0] - own[rank].ranks[0] if own_rank in own else 0
            for own in rooted.values()
        )
        if moved not in sites_of:
            sites = sites_of[moved] = dict(flight.sites)
            for number, by in zip(rooted, moved, strict=True):
                said, root = sites[number].root, root_of(sites[number]) or 0
                own_root = f"{said.rpartition(' ')[0]} {root + by}"
                sites[number] = replace(sites[number], root=own_root)
        return replace(flight, groups=groups, messages=messages, sites=sites_of[moved])

    return {own_rank: record_of(own_rank) for own_rank in ranks}


def _of_group(
    record: CollectiveRecord, family: GroupFamily | None, ranks: set[int]
) -> Mapping[int, CollectiveRecord]:
    if family is None or not family.offsets:
        return dict.fromkeys(ranks, record)
    found: dict[int, CollectiveRecord] = {}
    for first, name in groups_in(family):
        members = group_members(family.offsets, first)
        if here := ranks.intersection(members):
            found.update(dict.fromkeys(here, replace(record, group=name, ranks=members)))
    return found


def _rooted_sites(
    flight: FlightRecord, record: CollectiveRecord, members: Collection[int]
) -> list[int]:
    sites = {entry.site for entry in record.entries} & flight.sites.keys()
    return [site for site in sites if root_of(flight.sites[site]) in members]


def root_of(site: CallSite) -> int | None:
    """Return the root rank that a call names, or None."""
    number = site.root.rpartition(" ")[2]
    return int(number) if is_number(number) else None


def roots_apart(flight: FlightRecord) -> bool:
    """Whether one call site has the same root in several groups: then no rank is like another."""
    rooted = [
        site for record in flight.groups for site in _rooted_sites(flight, record, record.ranks)
    ]
    return len(set(rooted)) < len(rooted)


def as_rank(view: RankView, families: Sequence[GroupFamily], rank: int) -> RankView:
    """Return the view of a described rank as the view of ``rank``; group members stay left out."""
    flight = view.flight
    if flight is not None and view.rank != rank:
        flight = alike_records(flight, view.rank, families, (rank,))[rank]
        bare = tuple(
            replace(record, ranks=()) if family.offsets else record
            for record, family in zip(flight.groups, families, strict=False)
        )
        flight = replace(flight, groups=bare if families else flight.groups)
    return replace(view, rank=rank, flight=flight)


def with_members(view: RankView, families: Sequence[GroupFamily]) -> RankView:
    """Return the view of a rank with the members of its groups."""
    if view.flight is None or not families:
        return view
    own = alike_records(view.flight, view.rank, families, (view.rank,))
    return replace(view, flight=own[view.rank])


# Sets of ranks


def rank_set(ranks: Iterable[int]) -> RankSet:
    """Return the set of these ranks, in any order."""
    return joined((rank, rank) for rank in ranks)


def joined(sets: Iterable[RankSet]) -> RankSet:
    """Return the ranks that are in any of these sets."""
    pairs = sorted(chain.from_iterable(map(_pairs, sets)))
    found: list[int] = []
    for first, last in pairs:
        if found and first <= found[-1] + 1:
            found[-1] = max(found[-1], last)
        else:
            found += (first, last)
    return tuple(found)


def common(ranks: RankSet, other: RankSet) -> RankSet:
    """Return the ranks that are in both sets."""
    found: list[int] = []
    left, right = list(_pairs(ranks))[::-1], list(_pairs(other))[::-1]
    while left and right:
        first, last = max(left[-1][0], right[-1][0]), min(left[-1][1], right[-1][1])
        found += (first, last) if first <= last else ()
        (left if left[-1][1] == last else right).pop()
    return tuple(found)


def size(ranks: RankSet) -> int:
    """Return how many ranks a set has."""
    return sum(last - first + 1 for first, last in _pairs(ranks))


def members(ranks: RankSet) -> Iterator[int]:
    """Return the ranks of a set, ascending."""
    return chain.from_iterable(range(first, last + 1) for first, last in _pairs(ranks))


def in_words(ranks: RankSet) -> str:
    """Write a set as `text.shown` does: ``0-6,8``."""
    pairs = _pairs(ranks)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def is_rank_set(numbers: Sequence[int], most: int) -> bool:
    """Whether received numbers are a valid set of ranks below ``most``."""
    starts, ends = numbers[::2], numbers[1::2]
    ordered = all(first <= last for first, last in zip(starts, ends, strict=False))
    apart = all(last < first for last, first in zip((-1, *ends), (*starts, most), strict=False))
    return len(numbers) % 2 == 0 and ordered and apart


def _pairs(ranks: RankSet) -> Iterator[tuple[int, int]]:
    return zip(ranks[::2], ranks[1::2], strict=True)
