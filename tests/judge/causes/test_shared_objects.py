"""Ranks that meet at an object of multiprocessing: who could end the wait, and who departed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, MAIN, STDLIB, beside, job, rank, user, waiting_for
from flights import noted

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Frame, WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

IN_MEETING = (
    MAIN,
    user("meet", 50),
    Frame("Condition.wait", f"{STDLIB}/multiprocessing/synchronize.py", 271),
)
PARENT = 7
PIPE = waiting_for("pipe", "read", "pipe:[9]", 100, 102)


def meets(number: int, *sharing: int, memory: str = "memory:[00:1b:7]") -> RankView:
    """A rank that waits at an object that these ranks, and the process that began them, share."""
    pids = (*(100 + other for other in sharing), PARENT)
    return rank(number, IN_MEETING, **waiting_for("shared", "futex", memory, *pids))


def edges(*ranks: RankView) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in judge(job(*ranks)).wait_for}


def test_who_went_past_a_meeting_departed() -> None:
    case = job(meets(0, 1, 2), rank(1, IN_ALL_REDUCE), meets(2, 0, 1))
    verdict = judge(case)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1,), (0, 2))
    assert verdict.cause == "rank_diverged"
    assert [one.state for one in verdict.ranks] == ["waiting", "stalled", "waiting"]
    assert "rank 1 waits in all_reduce" in verdict.summary
    assert "ranks 0,2 wait in meet (demo/train.py:50) at a semaphore or lock" in verdict.summary
    assert edges(*case.ranks) == {
        *(("rank:0", "rank:1"), ("rank:2", "rank:1")),
        *(("rank:1", "rank:0"), ("rank:1", "rank:2")),
    }


def test_a_timer_of_one_that_shares_it_may_bring_what_is_missing() -> None:
    sleeps = {"waits_for": (WaitTarget(call="futex", kind="time"),)}
    timer = (Frame("Timer.run", f"{STDLIB}/threading.py", 1376),)
    went_past = beside(rank(1, IN_ALL_REDUCE, silent=200.0), timer, **sleeps)
    assert judge(job(meets(0, 1), rank(1, IN_ALL_REDUCE))).verdict == "hang"
    assert judge(job(meets(0, 1), went_past)).verdict == "suspect"


def test_the_advice_to_who_went_past_a_meeting_is_about_the_meeting() -> None:
    notes = (noted(50, branches=((50, 50),), branch_tests=("if skip: continue",)), noted(90))
    case = job(meets(0, 1, 2), rank(1, IN_ALL_REDUCE), meets(2, 0, 1), code=notes)
    advice = judge(case).remedies[0].text
    assert "train.py:50: rank 1 left out what meet calls there, under if skip: continue" in advice


def test_of_two_ranks_nothing_tells_who_departed() -> None:
    verdict = judge(job(meets(0, 1), rank(1, IN_ALL_REDUCE)))
    assert (verdict.culprits, verdict.cause) == ((0, 1), "rank_diverged")
    assert "ranks have waited for each other" in verdict.summary


def test_who_shares_it_and_stands_elsewhere_could_end_the_wait() -> None:
    verdict = judge(job(meets(0, 1, 2), rank(1, IN_LOAD), meets(2, 0, 1)))
    assert (verdict.culprits, verdict.victims) == ((1,), (0, 2))
    assert "in load (demo/train.py:41)" in verdict.summary


@pytest.mark.parametrize(
    ("silent", "feeder", "kind"),
    [(6.0, False, "hang"), (6.0, True, "suspect"), (29.0, True, "suspect"), (30.0, True, "hang")],
)
def test_a_queue_s_feeder_may_still_bring_what_is_missing(
    silent: float, feeder: bool, kind: str
) -> None:
    """It writes to the pipe beside the main thread, once it has the lock that others share."""
    shared = waiting_for("shared", "futex", "memory:[00:1b:7]", 100, 102)
    went_past = rank(0, IN_ALL_REDUCE, silent=silent)
    if feeder:
        feeds = (Frame("Queue._feed", f"{STDLIB}/multiprocessing/queues.py", 250),)
        lock = WaitTarget(call="futex", kind="shared", name="memory:[00:1b:8]")
        went_past = beside(went_past, feeds, waits_for=(lock,))
    waits = rank(1, IN_MEETING, silent=silent, **shared)
    reads = rank(2, IN_MEETING, silent=silent, **PIPE)
    assert judge(job(went_past, waits, reads)).verdict == kind


def test_where_all_that_share_it_wait_there_none_waits_for_another() -> None:
    verdict = judge(job(meets(0, 1), meets(1, 0)))
    assert verdict.culprits == (0, 1)
    assert all(not edge.target.startswith("rank:") for edge in verdict.wait_for)
