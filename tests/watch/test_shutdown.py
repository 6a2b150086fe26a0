"""When does what ranks do no longer count, because the job is shutting down?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cases import IN_ALL_REDUCE, IN_LOAD, gone, rank

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.shutdown import Shutdown

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
    assert not Shutdown().begun(HUNG, proven=True, now_ns=at(1))


def test_who_asks_first_counts_and_what_had_failed_by_then() -> None:
    shutdown = Shutdown()
    failed, killed = gone(1, 1, words="ValueError"), gone(2, -15)
    shutdown.ask("SIGTERM", (HUNG[0], failed, killed), "rank 1 is silent", at(1))
    shutdown.ask("SIGINT", HUNG, "", at(2))
    assert shutdown.asked is not None
    assert (shutdown.asked.by, shutdown.asked.failed_before) == ("SIGTERM", (1,))
    assert (shutdown.asked.suspected, shutdown.asked_ns) == ("rank 1 is silent", at(1))
    assert shutdown.begun(HUNG, proven=False, now_ns=at(1000))


def test_a_job_that_steps_on_a_minute_later_was_asked_something_else() -> None:
    shutdown = Shutdown()
    shutdown.ask("SIGHUP", (stepping(5),), "", at(0))
    assert shutdown.begun((stepping(9),), proven=False, now_ns=at(59)), "it finishes its epoch"
    assert shutdown.begun((stepping(9),), proven=False, now_ns=at(61))
    assert shutdown.begun((stepping(9),), proven=False, now_ns=at(300)), "it saves for long"
    assert not shutdown.begun((stepping(10),), proven=False, now_ns=at(301))
    assert shutdown.asked is None


def test_one_rank_that_leaves_a_proven_hang_tells() -> None:
    shutdown = Shutdown()
    shutdown.hang_proven(HUNG)
    assert shutdown.begun((gone(0, 1), HUNG[1]), proven=True, now_ns=at(1))
    assert shutdown.begun((interrupted(0), HUNG[1]), proven=True, now_ns=at(1))
    assert shutdown.end_round() is None, "a launcher starts it anew"
    assert not shutdown.begun(HUNG, proven=True, now_ns=at(2))


def test_a_rank_that_was_gone_before_the_hang_was_proven_does_not() -> None:
    shutdown = Shutdown()
    ranks = (gone(0, -15), HUNG[1])
    shutdown.hang_proven(ranks)
    assert not shutdown.begun(ranks, proven=True, now_ns=at(1))


def test_one_rank_that_answers_a_signal_speaks_for_those_that_cannot() -> None:
    """Ctrl-C comes to a rank that sleeps, and to one that waits in native code for it."""
    shutdown = Shutdown()
    ranks = (interrupted(0), HUNG[1])
    assert shutdown.begun(ranks, proven=False, suspected="rank 0 is silent", now_ns=at(1))
    assert shutdown.asked is not None
    assert shutdown.asked.by == "KeyboardInterrupt in rank 0"
    assert shutdown.asked.suspected == "rank 0 is silent"
    assert shutdown.begun(HUNG, proven=False, now_ns=at(30)), "what was asked for stays so"


def test_a_rank_that_a_signal_ended_speaks_for_no_other_for_it_may_be_needed() -> None:
    assert not Shutdown().begun((gone(0, -15), HUNG[1]), proven=False, now_ns=at(1))
    assert Shutdown().begun((gone(0, -15), interrupted(1)), proven=False, now_ns=at(1))


def test_a_launcher_that_ends_the_others_of_a_failed_rank_does_not_ask_for_the_end() -> None:
    ranks = (gone(0, 1, words="ValueError: bad sample"), interrupted(1))
    assert not Shutdown().begun(ranks, proven=False, now_ns=at(1))
