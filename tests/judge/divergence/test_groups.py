"""Groups of ranks: alike, in a mesh, and whose history leads elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_BARRIER, MAIN, job, rank, torch, user
from flights import flying
from msgspec.structs import replace

from lightning_hangcheck.judge import judge

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


OPS = {"a": "all_reduce 4", "b": "broadcast 1", "c": "barrier", "x": "all_gather 9"}
HERE = (MAIN, user("step", 90), torch("barrier"))


@pytest.mark.parametrize(
    ("history", "now", "culprits"),
    [
        ("babababab", "ab", (1,)),  # each step is b, a
        ("aaaaaa", "ax", (1,)),
        ("abcabcab", "cx", (1,)),
        ("xbaba" + "b", "bc", (1,)),  # neither ever followed, and only b was ever seen
        ("", "ab", (0, 1)),
        ("a", "ab", (1,)),  # only a was ever seen
        ("ab", "ab", (0, 1)),  # both were seen
        ("abab" + "acac" + "a", "bc", (0,)),  # the longest context decides
        ("ab" + "ac" + "a", "bc", (0, 1)),  # both followed, after an equal context
        (3 * ("a" * 40 + "b") + "a" * 40, "ab", (0,)),  # however long it takes to come round
        (3 * ("a" * 40 + "b") + "a" * 25, "ab", (1,)),
        ("a" * 40 + "b" + "a" * 40, "ab", (0, 1)),  # once is no rhythm
        ("a" * 9 + "b" + "a" * 9, "ab", (0,)),
    ],
)
def test_who_does_not_what_followed_the_same_operations_before_has_left(
    history: str, now: str, culprits: tuple[int, ...]
) -> None:
    done = [OPS[one] for one in history]
    ranks = (flying(rank(n, HERE), *done, OPS[one]) for n, one in enumerate(now))
    assert judge(job(*ranks)).culprits == culprits
