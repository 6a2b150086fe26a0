"""Ends that are no crash: somebody asked for them, or a rank left too soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, SITE, gone, job, rank, torch
from judge.ends.ended_ranks import LOST_PEER, LOST_STORE, beaten, member, raising

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.exits import asked_by
from lightning_hangcheck.judge.verdict import aftermath_of, ended_well, with_aftermath
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Aftermath, AskedEnd
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView


HANDLER = Frame(
    "_SignalConnector._sigterm_notifier_fn",
    f"{SITE}/lightning/pytorch/trainer/connectors/signal_connector.py",
    117,
)
ASKED = AskedEnd(by="SIGINT from the terminal")


def test_what_fails_after_the_end_was_asked_for_is_no_crash() -> None:
    ranks = gone(0, 1, words="RuntimeError: closed by peer"), gone(1, -9, order=1)
    verdict = judge(job(*ranks, ended=True, exit_code=1, asked_end=ASKED))
    assert (verdict.verdict, verdict.culprits) == ("finished", ())
    assert "ended by SIGINT from the terminal; no rank failed" in verdict.summary


def test_a_rank_that_had_failed_before_is_still_blamed() -> None:
    asked = AskedEnd(by="SIGINT from the terminal", failed_before=(1,))
    ranks = gone(0, -2, order=1), gone(1, 1, words="ValueError: bad sample")
    verdict = judge(job(*ranks, ended=True, exit_code=1, asked_end=asked))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))


def test_what_became_of_a_hang_is_a_sentence_more_and_the_verdict_stays() -> None:
    hung = job(rank(0, IN_ALL_REDUCE, silent=40.0), rank(1, IN_LOAD, silent=40.0))
    before = judge(hung)
    after = Aftermath(after_s=60.0, text="the job was ended by SIGINT from the terminal")
    verdict = judge(msgspec.structs.replace(hung, aftermath=after))
    told = "60 s later the job was ended by SIGINT from the terminal"
    assert before.verdict == "hang"
    assert verdict.summary == f"{before.summary}; {told}"
    assert verdict.stalled_for_s == before.stalled_for_s + 60
    assert [item.text for item in verdict.evidence if item.kind == "ending"] == [told]
    same = ("culprits", "victims", "cause", "stalled_since", "ranks", "wait_for", "remedies")
    assert [getattr(verdict, name) for name in same] == [getattr(before, name) for name in same]


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ((gone(0, -15), gone(1, -15, order=1)), "the job was ended by SIGTERM to rank 0"),
        ((gone(0, None), gone(1, None, order=1)), "the job ended, and nobody saw how"),
        (
            (gone(0, 1, words="RuntimeError: timed out"), gone(1, -15, order=1)),
            "the job ended: rank 0 failed first: it exited with code 1: RuntimeError: timed out; "
            "rank 1 ended after it",
        ),
    ],
)
def test_how_a_job_ended_in_which_a_hang_stood(ranks: tuple[RankView, ...], told: str) -> None:
    case = job(*ranks, ended=True)
    assert not ended_well(case)
    assert aftermath_of(case) == told


def test_a_job_whose_ranks_were_all_seen_to_leave_well_ended_well_though_a_hang_stood() -> None:
    assert ended_well(job(gone(0, 0), gone(1, 0), ended=True))
    assert ended_well(job(gone(0, 0), ended=True, exit_code=0, asked_end=ASKED))
    assert not ended_well(job(gone(0, -15), ended=True, exit_code=1, asked_end=ASKED))


def test_a_rank_that_caught_the_interrupt_and_went_on_is_not_asked_to_end() -> None:
    words = "KeyboardInterrupt in main (train.py:3)"
    leaving = Beat(pid=1, ending="raised", ended_ns=5, last_beat_ns=5, last_words=words)
    going_on = msgspec.structs.replace(leaving, last_beat_ns=9_000_000_000)
    assert asked_by(beaten(rank(0, IN_LOAD), leaving)) == "KeyboardInterrupt in rank 0"
    assert asked_by(beaten(rank(0, IN_LOAD), going_on)) is None


def test_where_a_signals_handler_waits_for_others_no_line_of_the_users_is_blamed() -> None:
    """Lightning's broadcasts; of the others, who wait in native code, none can answer."""
    verdict = judge(job(rank(0, IN_ALL_REDUCE), rank(1, (*IN_LOAD, HANDLER, torch("broadcast")))))
    assert (verdict.verdict, verdict.culprits) == ("hang", (1,))
    assert verdict.summary.startswith(
        "the job was asked to end by SIGTERM to rank 1, but cannot: rank 1 waits in broadcast of "
        "the signal's handler"
    )
    (remedy,) = verdict.remedies
    assert "kill -KILL" in remedy.text
    assert "load" not in verdict.summary + remedy.text


def test_what_became_of_a_hang_that_another_node_judged_is_added_to_it() -> None:
    hang = judge(job(rank(0, IN_ALL_REDUCE), gone(1, -9)))
    told = with_aftermath(hang, Aftermath(after_s=12.0, text="the job was ended by SIGINT"))
    assert (told.verdict, told.culprits) == (hang.verdict, hang.culprits)
    assert told.summary == f"{hang.summary}; 12 s later the job was ended by SIGINT"
    assert told.evidence[0].kind == "ending"


def test_a_rank_that_left_before_the_first_failed_is_told() -> None:
    """Its failure is its own: nobody is blamed for having finished."""
    failure = gone(0, 1, order=1, words="ValueError: bad sample")
    verdict = judge(job(failure, member(gone(1, 0, order=0)), ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (0,))
    assert verdict.summary.endswith("bad sample; rank 1 had exited cleanly before it")


def test_a_name_that_only_looks_like_a_lost_connection_is_an_own_failure() -> None:
    failure = gone(0, 1, order=1, words="ConnectionResetError: by peer (the data server)")
    verdict = judge(job(failure, member(gone(1, 0, order=0)), ended=True, exit_code=1))
    assert verdict.culprits == (0,)


@pytest.mark.parametrize(
    ("words", "code", "advised"),
    [("SystemExit: 0 in stop (a.py:7)", 0, "sys.exit"), ("ValueError: 7", 0, "fix what rank 0")],
)
def test_sys_exit_is_nothing_that_was_raised(words: str, code: int, advised: str) -> None:
    left = member(gone(0, code, words=words))
    verdict = judge(job(left, gone(1, 1, order=1, words=LOST_PEER), ended=True, exit_code=1))
    assert verdict.culprits == (0,)
    assert advised in verdict.remedies[0].in_words


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


@pytest.mark.parametrize("words", [LOST_STORE, LOST_PEER])
@pytest.mark.parametrize(("code", "order"), [(0, 0), (1, 0), (1, 2)])
def test_an_exception_that_wraps_the_loss_of_a_peer_points_to_who_went_first(
    words: str, code: int, order: int
) -> None:
    """Whether that one went with success, or failed; its process may have ended last."""
    first = raising(gone(0, 1, order=order, words="ValueError: 7 in load (data.py:4)"), 100)
    first = member(gone(0, 0, order=order)) if code == 0 else first
    wrapped = f"TrainingError: step 5 failed (from {words}) in fit (train.py:9)"
    ranks = first, raising(gone(1, 1, order=1, words=wrapped), 200)
    verdict = judge(job(*ranks, ended=True, exit_code=1))
    assert (verdict.verdict, verdict.culprits) == ("crashed", (0,))


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
    assert verdict.summary.startswith("rank 0 left with an unknown exit code while others")


def test_who_failed_for_want_of_one_that_left_is_no_culprit_while_others_still_wait() -> None:
    """Rank 2 still stands in the collective that rank 0 left, and in which rank 1 failed."""
    ranks = member(gone(0, 0)), gone(1, 1, order=1, words=LOST_PEER), rank(2, IN_ALL_REDUCE)
    verdict = judge(job(*ranks))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("dead", (0,), "process_dead")
