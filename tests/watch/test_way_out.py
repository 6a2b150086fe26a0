"""When does what ranks do no longer count, because the job is on its way out?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cases import IN_ALL_REDUCE, IN_LOAD, gone, rank

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.way_out import WayOut

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

HUNG = (rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD))
INTERRUPTED = "KeyboardInterrupt in main (train.py:3)"


def at(seconds: float) -> int:
    return int(seconds * NANOSECONDS)


def interrupted(number: int) -> RankView:
    beat = Beat(pid=1, ending="raised", ended_ns=5, last_beat_ns=5, last_words=INTERRUPTED)
    return rank(number, IN_LOAD, beat=beat)


def stepping(step: int) -> RankView:
    return rank(0, IN_LOAD, beat=Beat(pid=1, step=step))


def test_a_job_that_nobody_ends_is_not() -> None:
    assert not WayOut().begun(HUNG, proven=True, now_ns=at(1))


def test_who_asks_first_counts_and_what_had_failed_by_then() -> None:
    way_out = WayOut()
    failed, killed = gone(1, 1, words="ValueError"), gone(2, -15)
    way_out.ask("SIGTERM", (HUNG[0], failed, killed), "rank 1 is silent", at(1))
    way_out.ask("SIGINT", HUNG, "", at(2))
    assert way_out.asked is not None
    assert (way_out.asked.by, way_out.asked.failed_before) == ("SIGTERM", (1,))
    assert (way_out.asked.suspected, way_out.asked_ns) == ("rank 1 is silent", at(1))
    assert way_out.begun(HUNG, proven=False, now_ns=at(1000))


def test_a_job_that_steps_on_a_minute_later_was_asked_something_else() -> None:
    way_out = WayOut()
    way_out.ask("SIGHUP", (stepping(5),), "", at(0))
    assert way_out.begun((stepping(9),), proven=False, now_ns=at(59)), "it finishes its epoch"
    assert way_out.begun((stepping(9),), proven=False, now_ns=at(61))
    assert way_out.begun((stepping(9),), proven=False, now_ns=at(300)), "it saves for long"
    assert not way_out.begun((stepping(10),), proven=False, now_ns=at(301))
    assert way_out.asked is None


def test_one_rank_that_leaves_a_proven_hang_tells() -> None:
    way_out = WayOut()
    way_out.hang_proven(HUNG)
    assert way_out.begun((gone(0, 1), HUNG[1]), proven=True, now_ns=at(1))
    assert way_out.begun((interrupted(0), HUNG[1]), proven=True, now_ns=at(1))
    assert not way_out.begun(HUNG, proven=True, now_ns=at(2)), "a launcher has started it anew"


def test_a_rank_that_was_gone_before_the_hang_was_proven_does_not() -> None:
    way_out = WayOut()
    ranks = (gone(0, -15), HUNG[1])
    way_out.hang_proven(ranks)
    assert not way_out.begun(ranks, proven=True, now_ns=at(1))


def test_where_nothing_is_proven_all_ranks_must_tell_for_one_may_be_needed() -> None:
    way_out = WayOut()
    assert not way_out.begun((interrupted(0), HUNG[1]), proven=False, now_ns=at(1))
    assert not way_out.begun((gone(0, -15), HUNG[1]), proven=False, now_ns=at(1))
    assert way_out.begun((interrupted(0), interrupted(1)), proven=False, now_ns=at(1))
    assert way_out.begun((gone(0, -15), interrupted(1)), proven=False, now_ns=at(1))
