"""Two ranks of a group part: what other groups of its kind did tells which of them departed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import MAIN, job, rank, torch, user
from flights import flying

from lightning_hangcheck.diagnosis import judge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

STEPS = ["all_reduce 4"] * 30
GATHERS = (MAIN, user("collect", 69), torch("all_gather"))
REDUCES = (MAIN, user("sync", 81), torch("all_reduce"))


def member(number: int, now: str, group: str, ranks: tuple[int, ...]) -> RankView:
    """A rank of a group that has made thirty steps, and what it does now."""
    frames = GATHERS if now.startswith("all_gather") else REDUCES
    return flying(rank(number, frames), *STEPS, now, group=group, ranks=ranks)


def with_sister(size: int) -> list[RankView]:
    """Ranks 1 and 3 part; ranks 0 and 2 have gathered, and go on in their next step."""
    now = f"all_reduce {size}"
    ops = [*STEPS, "all_gather 1", now]
    sisters = [flying(rank(n, REDUCES), *ops, group="3", ranks=(0, 2)) for n in (0, 2)]
    parted = [
        member(1, "all_gather 1", "4", (1, 3)),
        member(3, f"all_reduce {size}", "4", (1, 3)),
    ]
    return sorted((*sisters, *parted), key=lambda one: one.rank)


@pytest.mark.parametrize("size", [4, 9])
def test_the_one_that_does_otherwise_than_all_groups_of_the_kind_has_departed(size: int) -> None:
    """It never gathered before: its own steps tell nothing, or expect the reduction."""
    verdict = judge(job(*with_sister(size)))
    assert verdict.culprits == (3,)
    assert any("all other groups of this kind" in one.text for one in verdict.evidence)


def test_groups_that_came_another_way_tell_nothing() -> None:
    ranks = with_sister(9)
    for number in (0, 2):
        ops = [*["all_gather 2"] * 30, "all_gather 1", "all_reduce 9"]
        ranks[number] = flying(rank(number, REDUCES), *ops, group="3", ranks=(0, 2))
    assert judge(job(*ranks)).culprits == (1, 3)


def test_without_another_group_nothing_tells() -> None:
    pair = [member(0, "all_gather 1", "4", (0, 1)), member(1, "all_reduce 9", "4", (0, 1))]
    assert judge(job(*pair)).culprits == (0, 1)
