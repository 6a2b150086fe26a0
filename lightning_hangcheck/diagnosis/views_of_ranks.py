"""Which view tells of which rank: its own, or in jobs of thousands that of one alike. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.case import RankName
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from lightning_hangcheck.model.case import Alike, RankView


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


def views_of_others(views: Mapping[int, RankView], alike: Iterable[Alike]) -> dict[int, RankView]:
    """Return for each rank that another one stands for the view of that one.

    Args:
        views: By rank.
        alike: Which of these stand for others.
    """
    told = [one for one in alike if one.rank in views]
    return {rank: views[one.rank] for one in told for rank in parse_ranks(one.ranks)}


def told_by_others(alike: Iterable[Alike], known: Container[int]) -> Iterator[tuple[int, RankName]]:
    """Yield each rank without a view of its own, after the rank that stands for it.

    Args:
        alike: Which ranks stand for others.
        known: Ranks that have a view.
    """
    for one in alike:
        if one.rank not in known:
            continue
        names = {name.rank: name for name in one.names}
        for rank in parse_ranks(one.ranks):
            if rank not in known:
                yield one.rank, names.get(rank, RankName(rank))


def _doubled(view: RankView) -> Gap:
    return Gap(
        kind="rank",
        what=f"process {view.pid}",
        rank=view.rank if view.rank >= 0 else None,
        why=f"it says that it is rank {view.rank}, which another process is, or which cannot be; "
        "its evidence was left out",
    )
