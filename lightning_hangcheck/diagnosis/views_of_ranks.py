"""Which view tells of which rank: its own, or in jobs of thousands that of one alike. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.gather.alike_records import AlikeRecords, Members, with_members
from lightning_hangcheck.model.case import RankName
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lightning_hangcheck.model.case import Alike, RankView
    from lightning_hangcheck.model.flight import FlightRecord

    ViewsOfAll = tuple[dict[int, RankView], dict[int, tuple[int, RankView]]]
    """Of ranks with a view of their own, and of the others with the rank that tells for each."""


def views_of_ranks(views: Iterable[RankView]) -> tuple[dict[int, RankView], tuple[Gap, ...]]:
    """Return each rank's own view, and a gap for each that cannot be one's."""
    found: dict[int, RankView] = {}
    gaps: list[Gap] = []
    for view in views:
        if view.rank in found or view.rank < 0:
            gaps.append(_doubled(view))
        else:
            found[view.rank] = view
    return found, tuple(gaps)


def with_groups(views: Mapping[int, RankView], alike: Iterable[Alike]) -> ViewsOfAll:
    """Return the view of each rank, and of each that another one tells for, with its own groups.

    Args:
        views: By rank.
        alike: Which of these stand for others.
    """
    own, known = dict(views), Members()
    others: dict[int, tuple[int, RankView]] = {}
    for one in alike:
        told = views.get(one.rank)
        if told is None:
            continue
        own[one.rank] = with_members(told, one.groups, known)
        ranks = [rank for rank in parse_ranks(one.ranks) if rank not in views]
        names = {name.rank: name for name in one.names}
        flight = told.flight
        records = AlikeRecords(flight, told.rank, one.groups, ranks, known) if flight else None
        for rank in ranks:
            name = names.get(rank) or RankName(rank)
            others[rank] = one.rank, _as_rank(told, name, records.of(rank) if records else None)
    return own, others


def _as_rank(view: RankView, name: RankName, flight: FlightRecord | None) -> RankView:
    return replace(
        view,
        rank=name.rank,
        local_rank=name.local_rank,
        host=name.host,
        pid=name.pid,
        flight=flight,
    )


def _doubled(view: RankView) -> Gap:
    return Gap(
        kind="rank",
        what=f"process {view.pid}",
        rank=view.rank if view.rank >= 0 else None,
        why=f"it says that it is rank {view.rank}, which another process is, or which cannot be; "
        "its evidence was left out",
    )
