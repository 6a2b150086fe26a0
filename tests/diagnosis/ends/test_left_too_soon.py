"""A rank that lost a peer is not to blame where that peer had left without a fault."""

from __future__ import annotations

import pytest
from cases import IN_ALL_REDUCE, gone, job, rank
from diagnosis.ends.ended_ranks import LOST_PEER, LOST_STORE, beaten, member, raising

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.beat import Beat


def test_a_rank_that_left_before_the_first_failed_is_told() -> None:
    """Its failure is its own: nobody is blamed for having finished."""
    failure = gone(0, 1, order=1, words="ValueError: bad sample")
    verdict = judge(job(failure, member(gone(1, 0, order=0)), ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (0,))
    assert verdict.summary.endswith("bad sample; rank 1 had left before it without a fault")


def test_a_name_that_only_looks_like_a_lost_connection_is_an_own_failure() -> None:
    failure = gone(0, 1, order=1, words="ConnectionResetError: by peer (the data server)")
    verdict = judge(job(failure, member(gone(1, 0, order=0)), ended=True, exit_code=1))
    assert verdict.culprits == (0,)


@pytest.mark.parametrize(
    ("words", "code", "advised"),
    [("SystemExit: 0 in stop (a.py:7)", 0, "sys.exit"), ("ValueError: 7", 0, "mend what rank 0")],
)
def test_sys_exit_is_nothing_that_was_raised(words: str, code: int, advised: str) -> None:
    left = member(gone(0, code, words=words))
    verdict = judge(job(left, gone(1, 1, order=1, words=LOST_PEER), ended=True, exit_code=1))
    assert verdict.culprits == (0,)
    assert advised in verdict.remedies[0].text


@pytest.mark.parametrize("words", [LOST_STORE, LOST_PEER])
def test_who_left_while_others_needed_it_is_blamed_for_what_they_died_of(words: str) -> None:
    """Rank 1 fails for want of rank 0, and rank 2 of both."""
    ranks = member(gone(0, 0)), gone(1, 1, order=1, words=words), gone(2, -15, order=2)
    verdict = judge(job(*ranks, ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("crashed", (0,), (1, 2))
    assert verdict.cause == "process_dead"
    assert verdict.summary.startswith(
        "rank 0 left with exit code 0 while others still needed it: rank 1 failed then, as it "
        f"exited with code 1: {words}"
    )


def test_a_rank_that_had_left_its_groups_is_not_blamed_beside_one_that_had_not() -> None:
    """Rank 2 had done its part long before; ranks 0 and 1 went on in a group of their own."""
    parted = beaten(gone(2, 0), Beat(pid=1, membership="left", ending="finished", ended_ns=1))
    left = member(gone(1, 0, order=1))
    failure = gone(0, 1, order=2, words=LOST_PEER)
    assert judge(job(failure, left, parted, ended=True, exit_code=1)).culprits == (1,)


def test_a_rank_that_took_the_store_with_it_is_blamed_though_it_had_left_its_groups() -> None:
    parted = beaten(gone(0, 0), Beat(pid=1, membership="left"))
    failure = gone(1, 1, order=1, words=LOST_STORE)
    assert judge(job(parted, failure, ended=True, exit_code=1)).culprits == (0,)


def test_who_says_that_it_has_finished_left_first_however_long_its_process_took() -> None:
    """The others lose the store while rank 0's interpreter ends, and the launcher ends that."""
    leaving = member(gone(0, -15, order=1), "finished", 100)
    failure = raising(gone(1, 1, order=0, words=LOST_STORE), 200)
    assert judge(job(leaving, failure, ended=True, exit_code=1)).culprits == (0,)


def test_of_a_rank_that_left_unseen_no_exit_code_is_claimed() -> None:
    failure = gone(1, 1, order=1, words=LOST_STORE)
    verdict = judge(job(member(gone(0, None)), failure, ended=True, exit_code=1))
    assert verdict.culprits == (0,)
    assert verdict.summary.startswith("rank 0 left, with what exit code nobody saw, while others")


def test_a_rank_that_left_after_the_loss_is_not_blamed_for_it() -> None:
    later = member(gone(0, 0, order=1), "finished", 300)
    failure = raising(gone(1, 1, order=0, words=LOST_STORE), 200)
    assert judge(job(later, failure, ended=True, exit_code=1)).culprits == (1,)


def test_who_failed_for_want_of_one_that_left_is_no_culprit_while_others_still_wait() -> None:
    """Rank 2 still stands in the collective that rank 0 left, and in which rank 1 failed."""
    ranks = member(gone(0, 0)), gone(1, 1, order=1, words=LOST_PEER), rank(2, IN_ALL_REDUCE)
    verdict = judge(job(*ranks))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("dead", (0,), "process_dead")


def test_a_rank_that_left_after_it_is_not() -> None:
    verdict = judge(job(gone(0, 1, order=0), gone(1, 0, order=1), ended=True, exit_code=1))
    assert "left" not in verdict.summary
