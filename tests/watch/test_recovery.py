"""Whether the ranks advance again that a verdict is about, seen here or on other nodes."""

from __future__ import annotations

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank
from lightning_hangcheck.watch.recovery import advanced

RAISED_NS = 50
VERDICT = judge(job(rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD)))


def watched(number: int, advanced_ns: int, *, gone: bool = False) -> dict[int, WatchedRank]:
    one = WatchedRank(FoundRank(rank=number, pid=100 + number), advanced_ns)
    if gone:
        one.note_exit(0, "", 1)
    return {number: one}


def test_the_verdict_blames_rank_1() -> None:
    assert (VERDICT.culprits, VERDICT.victims) == ((1,), (0,))


@pytest.mark.parametrize("at_ns", [40, 60])
def test_a_culprit_is_asked_where_it_is_seen(at_ns: int) -> None:
    later = at_ns > RAISED_NS
    assert advanced(VERDICT, RAISED_NS, watched(1, at_ns), None) == later
    assert advanced(VERDICT, RAISED_NS, watched(0, 0), {1: at_ns}) == later


@pytest.mark.parametrize("at_ns", [40, 60])
def test_where_its_node_is_silent_those_that_waited_tell(at_ns: int) -> None:
    assert advanced(VERDICT, RAISED_NS, watched(0, at_ns), {}) == (at_ns > RAISED_NS)


def test_a_culprit_that_is_gone_does_not_come_back_whatever_others_do_on_their_way_out() -> None:
    here = {**watched(0, 60), **watched(1, 60, gone=True)}
    assert not advanced(VERDICT, RAISED_NS, here, {})
    assert not advanced(VERDICT, RAISED_NS, watched(0, 60), None)


def test_nothing_recovers_where_nothing_stands() -> None:
    assert not advanced(None, RAISED_NS, watched(0, 60), {})
