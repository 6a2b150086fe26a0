"""Groups of a device mesh share one name: a sentence tells which of them it speaks of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cases import IN_ALL_REDUCE, IN_BARRIER, job, rank
from flights import flying
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView


def in_data_group(view: RankView, *ops: str) -> RankView:
    told = flying(view, *ops, group="5", ranks=(0, 4, 8))
    assert told.flight is not None
    (record,) = told.flight.groups
    return replace(told, flight=replace(told.flight, groups=(replace(record, description="data"),)))


def test_a_group_is_named_with_its_ranks() -> None:
    verdict = judge(
        job(
            in_data_group(rank(0, IN_ALL_REDUCE), "all_reduce", "all_reduce"),
            in_data_group(rank(4, IN_ALL_REDUCE), "all_reduce", "all_reduce"),
            in_data_group(rank(8, IN_BARRIER), "all_reduce", "barrier"),
            world_size=9,
        )
    )
    assert verdict.culprits == (8,)
    assert "of group data (ranks 0,4,8)" in verdict.summary
