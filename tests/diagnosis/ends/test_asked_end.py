"""Somebody asked the job to end: what fails then is no crash, and a hang stays what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, SITE, gone, job, rank, torch
from diagnosis.ends.ended_ranks import beaten

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.diagnosis.asked_end import asked_by
from lightning_hangcheck.diagnosis.judge import aftermath_of, ended_well, with_aftermath
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


def test_the_suspicion_that_stood_when_the_end_was_asked_for_is_told() -> None:
    asked = AskedEnd(by="SIGINT from the terminal", suspected="rank 1 is silent")
    verdict = judge(job(gone(0, -2), gone(1, -2), ended=True, exit_code=1, asked_end=asked))
    assert verdict.summary.endswith("suspected by then: rank 1 is silent")


def test_a_helper_ended_in_a_job_that_ended_well_does_not_mean_that_it_was_ended() -> None:
    verdict = judge(job(gone(0, 0), gone(1, -15), ended=True, exit_code=0))
    assert "ended well" in verdict.summary


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
        "the job was asked to end by SIGTERM to rank 1, and cannot: rank 1 waits in broadcast of "
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
