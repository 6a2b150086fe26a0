"""The record of each rank that another one tells for: its own groups, its own peers. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.gather.group_families import groups_in, is_number, numbers_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.flight import (
        CallSite,
        CollectiveRecord,
        FlightRecord,
        GroupFamily,
    )


class Members(dict[tuple[tuple[int, ...], int], tuple[int, ...]]):
    """Of groups that were met before, by shape and first one: equal ones are one and the same."""


class AlikeRecords:
    """What the record of one rank says of those that stand as it does.

    Ranks of one group share what is told of it, so a hundred thousand ranks have some thousands.

    Args:
        told: The record; groups whose families are told name no members in it.
        rank: Whose it is.
        families: As in `Alike`.
        ranks: For whom it is asked.
        known: Groups met before.
    """

    def __init__(
        self,
        told: FlightRecord,
        rank: int,
        families: Sequence[GroupFamily],
        ranks: Collection[int],
        known: Members,
    ) -> None:
        self._told, self._rank = told, rank
        everyone = {rank, *ranks}
        padded = [*families, *[None] * (len(told.groups) - len(families))]
        self._of_ranks = [
            _records(record, family, everyone, known)
            for record, family in zip(told.groups, padded, strict=True)
        ]
        self._rooted = dict(self._sites_with_root())
        self._sites: dict[tuple[int, ...], dict[int, CallSite]] = {}

    def of(self, rank: int) -> FlightRecord:
        """Return the record of one of the ranks."""
        found = (of_ranks.get(rank) for of_ranks in self._of_ranks)
        groups = tuple(record for record in found if record is not None)
        messages, moved = self._told.messages, rank - self._rank
        if messages is not None and moved:
            messages = replace(messages, moved=messages.moved + moved)
        sites = self._sites_of(rank) if self._rooted else self._told.sites
        return replace(self._told, groups=groups, messages=messages, sites=sites)

    def _sites_of(self, rank: int) -> dict[int, CallSite]:
        """Return whence it called, each root moved as the group is."""
        moved = tuple(self._moved(at, rank) for at in self._rooted.values())
        if moved not in self._sites:
            sites = dict(self._told.sites)
            for (number, _), by in zip(self._rooted.items(), moved, strict=True):
                sites[number] = replace(sites[number], root=moved_root(sites[number], by))
            self._sites[moved] = sites
        return self._sites[moved]

    def _moved(self, at: int, rank: int) -> int:
        here, there = self._of_ranks[at].get(rank), self._of_ranks[at].get(self._rank)
        return here.ranks[0] - there.ranks[0] if here is not None and there is not None else 0

    def _sites_with_root(self) -> Iterator[tuple[int, int]]:
        """Yield places that are called with a root of a group that others have elsewhere."""
        sites = self._told.sites
        for at, record in enumerate(self._told.groups):
            own = self._of_ranks[at].get(self._rank)
            for site in {entry.site for entry in record.entries} & sites.keys():
                if own is not None and root_of(sites[site]) in own.ranks:
                    yield site, at


def root_of(site: CallSite) -> int | None:
    """Return the rank that a call names as its root; None where it names none."""
    number = site.root.rpartition(" ")[2]
    return int(number) if is_number(number) else None


def moved_root(site: CallSite, by: int) -> str:
    """Return a call's root, by so much larger."""
    return f"{site.root.rpartition(' ')[0]} {(root_of(site) or 0) + by}"


def roots_apart(flight: FlightRecord) -> bool:
    """Whether one place is called with the same root in several groups: nobody stands alike."""
    rooted = Counter(
        site
        for record in flight.groups
        for site in {entry.site for entry in record.entries} & flight.sites.keys()
        if root_of(flight.sites[site]) in record.ranks
    )
    return any(often > 1 for often in rooted.values())


def as_rank(view: RankView, families: Sequence[GroupFamily], rank: int) -> RankView:
    """Return a view that stands for several as that of another one of them; members stay untold."""
    if view.flight is None or view.rank == rank:
        return replace(view, rank=rank)
    flight = AlikeRecords(view.flight, view.rank, families, (rank,), Members()).of(rank)
    bare = tuple(
        replace(one, ranks=()) if family.offsets else one
        for one, family in zip(flight.groups, families, strict=False)
    )
    groups = bare if families else flight.groups
    return replace(view, rank=rank, flight=replace(flight, groups=groups))


def with_members(view: RankView, families: Sequence[GroupFamily], known: Members) -> RankView:
    """Return the view of a rank with the members of its groups."""
    if view.flight is None or not families:
        return view
    records = AlikeRecords(view.flight, view.rank, families, (view.rank,), known)
    return replace(view, flight=records.of(view.rank))


def _records(
    record: CollectiveRecord,
    family: GroupFamily | None,
    ranks: set[int],
    known: Members,
) -> Mapping[int, CollectiveRecord]:
    if family is None or not family.offsets:
        return dict.fromkeys(ranks, record)
    found: dict[int, CollectiveRecord] = {}
    offsets: tuple[int, ...] = ()
    for first, name in groups_in(family):
        key = family.offsets, first
        if key not in known:
            offsets = offsets or numbers_in(family.offsets)
            known[key] = tuple(first + offset for offset in offsets)
        here = ranks.intersection(known[key])
        if here:
            found.update(dict.fromkeys(here, replace(record, group=name, ranks=known[key])))
    return found
