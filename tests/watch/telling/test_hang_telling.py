"""When the launcher hears of a hang, for which it may end the job."""

from __future__ import annotations

import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.watch.messages import HangProven
from lightning_hangcheck.watch.telling.hang_telling import LIMIT_S, HangTelling

WORD = HangProven(ranks=((17, 99),))
HANG = judge(job(rank(0, IN_BARRIER), rank(1, IN_LOAD)))


def proven(*, ends_the_job: bool, saved: bool = True) -> HangTelling:
    """One that was proven at second 100."""
    telling = HangTelling(ends_the_job=ends_the_job)
    event = telling.prove(WORD, HANG, 100.0)
    if saved:
        event.set()
    return telling


def test_it_is_told_once_its_evidence_is_saved() -> None:
    telling = HangTelling(ends_the_job=False)
    assert not telling.is_due(100.0, stands=True, known=True)
    saved = telling.prove(WORD, HANG, 100.0)
    assert not telling.is_due(100.1, stands=True, known=True)
    saved.set()
    assert telling.is_due(100.2, stands=True, known=True)
    telling.told()
    assert not telling.is_due(100.3, stands=True, known=True)
    assert (telling.word, telling.verdict) == (WORD, HANG)


@pytest.mark.parametrize("ends_the_job", [False, True])
def test_storage_that_does_not_answer_is_not_waited_for(ends_the_job: bool) -> None:
    telling = proven(ends_the_job=ends_the_job, saved=False)
    assert not telling.is_due(99.9 + LIMIT_S, stands=True, known=True)
    assert telling.is_due(100.0 + LIMIT_S, stands=True, known=True)


def test_a_job_is_ended_for_it_once_all_nodes_know_or_none_can_be_waited_for() -> None:
    telling = proven(ends_the_job=True)
    assert not telling.is_due(101.0, stands=True, known=False)
    assert telling.is_due(101.0, stands=True, known=True)
    assert telling.is_due(100.0 + LIMIT_S, stands=True, known=False)


def test_no_node_is_waited_for_where_the_job_goes_on() -> None:
    assert proven(ends_the_job=False).is_due(100.1, stands=True, known=False)


def test_a_job_that_moves_again_is_not_ended() -> None:
    """It may while other nodes are waited for."""
    telling = proven(ends_the_job=True)
    assert not telling.is_due(103.0, stands=False, known=True)
    assert not telling.waits
    assert not telling.is_due(106.0, stands=True, known=True), "the next hang is proven anew"


def test_evidence_of_the_hang_before_is_not_that_of_this_one() -> None:
    telling = HangTelling(ends_the_job=True)
    before = telling.prove(WORD, HANG, 100.0)
    telling.prove(WORD, HANG, 102.0)
    before.set()
    assert not telling.is_due(103.0, stands=True, known=True)
