"""Ranks that make steps far below their own pace: whose work it is, and in which part."""

from __future__ import annotations

from cases import IN_LOAD, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Slowness, SlowRank, StepTimes
from lightning_hangcheck.model.verdict import Edge, Verdict

BEFORE = StepTimes(1, 0.1, 0.2, 0.1)


def slow(number: int, loader: float, forward: float, rest: float, **fields: object) -> SlowRank:
    """A rank whose step takes these seconds now, and took 0.4 s before."""
    now = StepTimes(1, loader, forward, rest)
    facts = {"known_s": 0.4, "level_s": now.seconds, "before": BEFORE, **fields}
    return SlowRank(rank=number, now=now, **facts)


def told(*ranks: SlowRank) -> Verdict:
    """The verdict on ranks that advance, these of them slowly."""
    case = job(*(rank(number, silent=0.1) for number in range(2)))
    return judge(replace(case, slowness=Slowness(for_s=200.0, ranks=ranks)))


def test_the_rank_whose_own_work_grew_is_blamed_and_who_waits_is_a_victim() -> None:
    verdict = told(slow(0, 0.1, 0.2, 3.7), slow(1, 3.7, 0.2, 0.1))
    assert (verdict.verdict, verdict.cause) == ("slow", "slow_progress")
    assert (verdict.culprits, verdict.victims, verdict.phase) == ((1,), (0,), "dataloading")
    assert verdict.summary.startswith(
        "rank 1 has been slow for 3 min: a step takes 4 s instead of 0.4 s; "
        "most of that in loader: 3.7 s instead of 0.1 s; rank 0 waits for it"
    )
    assert verdict.wait_for == (Edge("rank:0", "rank:1", "each step"),)
    assert "waits for its batches" in verdict.remedies[0].text


def test_ranks_that_are_slow_alike_are_all_blamed() -> None:
    verdict = told(slow(0, 0.1, 3.7, 0.2), slow(1, 0.1, 3.7, 0.2))
    assert (verdict.culprits, verdict.victims, verdict.phase) == ((0, 1), (), "training_step")
    assert "most of that in forward of rank" in verdict.summary


def test_where_nobodys_own_work_grew_nobody_is_singled_out() -> None:
    verdict = told(slow(0, 0.1, 0.2, 3.7), slow(1, 0.1, 0.2, 3.7))
    assert (verdict.culprits, verdict.confidence) == ((0, 1), 0.5)
    assert "most of that in backward, optimizer and waiting" in verdict.summary
    assert "who waits for whom is unknown" in verdict.summary


def test_ranks_that_are_slow_alike_may_have_other_work_and_must_be_slower() -> None:
    alike = slow(0, 0.1, 1.4, 0.1), slow(1, 0.1, 1.4, 0.1)
    assert told(*alike).verdict == "healthy"
    assert told(slow(0, 0.1, 0.2, 1.3), slow(1, 1.3, 0.2, 0.1)).verdict == "slow"


def test_looks_tell_who_works_while_the_others_wait() -> None:
    whole = {"before": StepTimes(1, 0.0, 0.0, 0.4), "in_parts": False, "looks": 10}
    waits = slow(0, 0.0, 0.0, 1.4, waited=9, **whole)
    works = slow(1, 0.0, 0.0, 1.4, waited=1, place=IN_LOAD[-1], **whole)
    verdict = told(waits, works)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("slow", (1,), (0,))
    assert "seen in load (demo/train.py:41); rank 0 waits for it" in verdict.summary
    seldom = replace(works, waited=5)
    both = told(replace(waits, level_s=4.0), replace(seldom, level_s=4.0))
    assert both.culprits == (0, 1)
