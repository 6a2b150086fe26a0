"""A rank that spins in one C call while its device is in a collective waits for the other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, MAIN, job, rank, user
from flights import AT_ITEM, on_device, spinning
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.evidence import ThreadStack
from lightning_hangcheck.reading.activity.rank_activity import read_rank_activity

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

ELSEWHERE = (MAIN, user("log_loss", 31))
CHECKPOINT_THREAD = ThreadStack(tid=9, name="checkpoint", frames=IN_ALL_REDUCE)


def with_main(view: RankView, *others: ThreadStack, owns_gil: bool = False) -> RankView:
    """The rank, its main thread with the lock or without, beside other threads."""
    (own,) = view.processes
    samples = []
    for one in own.samples:
        assert one.stack is not None
        main = replace(one.stack.threads[0], owns_gil=owns_gil)
        samples.append(replace(one, stack=replace(one.stack, threads=(main, *others))))
    return replace(view, processes=(replace(own, samples=tuple(samples)),))


def test_a_rank_that_spins_for_its_device_waits_for_the_others() -> None:
    seen = read_rank_activity(on_device(spinning(0), "all_reduce", "broadcast", first=7))
    assert seen.activity == "waiting"
    assert seen.wait is not None
    assert (seen.wait.kind, seen.wait.name) == ("device", "all_reduce")


@pytest.mark.parametrize(
    "view",
    [
        spinning(0),
        on_device(spinning(0), "all_reduce", on_device=False),
        with_main(on_device(spinning(0), "all_reduce"), owns_gil=True),
        with_main(on_device(spinning(0), "all_reduce"), CHECKPOINT_THREAD),
        on_device(spinning(0, AT_ITEM, ELSEWHERE, AT_ITEM), "all_reduce"),
    ],
    ids=["no record", "gloo", "runs Python", "another thread's", "at several lines"],
)
def test_a_rank_that_computes_is_none_that_waits(view: RankView) -> None:
    assert read_rank_activity(view).activity == "busy"


def test_those_that_run_ahead_are_victims_of_the_one_that_does_not_come() -> None:
    ahead = [on_device(spinning(number), "all_reduce", "all_reduce", first=7) for number in (0, 1)]
    verdict = judge(job(*ahead, on_device(rank(2, IN_LOAD), first=7)))
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1))
    assert verdict.cause == "rank_stalled"


def test_the_line_of_a_rank_that_is_ahead_tells_nothing_of_where_it_parted() -> None:
    """Rank 0 stands under a test of the rank, and is right; rank 2 alone has another operation."""
    ahead = [on_device(spinning(number), "all_reduce", first=7) for number in (0, 1)]
    verdict = judge(job(*ahead, on_device(spinning(2), "broadcast", first=7)))
    assert verdict.verdict == "hang"
    assert verdict.culprits == (2,)
