"""A job that no collective joins: who is suspected where every rank stands still by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import FUTEX, IN_LOAD, MAIN, changed_rank, gone, job, rank, user, waiting_for
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView

SLEEPS = {"waits_for": (WaitTarget(call="clock_nanosleep", kind="time"),)}
FUTEX_WAIT = {"waits_for": FUTEX, "syscall": 202}
IN_POLL = (MAIN, user("wait_for_flag", 37))
STORE = waiting_for("socket", "recvfrom", "127.0.0.1:29500")


def polling(view: RankView, each: int = 1) -> RankView:
    """The rank, each time asleep until another moment, or until the same one."""
    return changed_rank(
        view,
        lambda number, states, stacks: ((replace(states[0], wakes_ns=1 + number * each),), stacks),
    )


def told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.cause


def test_a_rank_that_sleeps_once_may_answer_the_other_when_it_wakes() -> None:
    """Remote procedure calls: one waits for an answer, for which a thread of the other sleeps."""
    asks = rank(0, IN_LOAD, silent=200.0, **FUTEX_WAIT)
    assert told(job(asks, rank(1, IN_POLL, silent=200.0, **FUTEX_WAIT)))[0] == "hang"
    once, again = (rank(1, IN_POLL, silent=200.0, **SLEEPS) for _ in range(2))
    assert told(job(asks, polling(once, each=0)))[0] == "suspect"
    assert told(job(asks, polling(again)))[0] == "hang"


def test_a_rank_that_failed_is_dead_later_where_the_others_may_ask_for_anything() -> None:
    for silent, kind in ((5.0, "suspect"), (29.0, "suspect"), (30.0, "dead")):
        asks = rank(1, IN_POLL, silent=silent, **SLEEPS)
        assert told(job(gone(0, -9, silent=silent), asks)) == (kind, (0,), "process_dead")


def test_a_rank_that_failed_is_dead_where_the_others_ask_again_and_again() -> None:
    """They sleep until another moment each time, so they poll: a file that never comes."""
    for silent, kind in ((3.0, "suspect"), (5.0, "dead")):
        polls = [polling(rank(number, IN_POLL, silent=silent, **SLEEPS)) for number in (1, 2)]
        case = job(gone(0, -9, silent=silent), *polls)
        assert told(case) == (kind, (0,), "process_dead")
        assert judge(case).victims == (1, 2)


def test_a_rank_that_failed_stays_the_culprit_however_many_stand_still() -> None:
    asks = [rank(number, IN_LOAD, silent=400.0, **STORE) for number in (1, 2, 3)]
    assert told(job(gone(0, 1, silent=400.0), *asks)) == ("dead", (0,), "process_dead")


def test_each_rank_has_its_own_cause_and_that_of_most_is_named() -> None:
    lock = waiting_for("lock", "fcntl", "/data/index.lock", 4711)
    locked = [rank(number, IN_POLL, silent=31.0, **lock) for number in (0, 1)]
    stalled = [rank(number, IN_LOAD, silent=31.0) for number in (2, 3, 4)]
    verdict = judge(job(*locked, *stalled))
    assert (verdict.verdict, verdict.cause) == ("hang", "rank_stalled")
    assert verdict.culprits == (0, 1, 2, 3, 4)
    assert "/data/index.lock" in verdict.summary


def _left(ending: str = "running", membership: str = "member") -> RankView:
    """Rank 0 after os._exit(0), long ago."""
    beat = Beat(pid=100, ending=ending, membership=membership)
    return replace(gone(0, 0, silent=900.0), beat=beat)


def _asking(silent: float) -> RankView:
    return polling(rank(1, IN_POLL, silent=silent, **SLEEPS))


@pytest.mark.parametrize(
    ("silent", "kind"), [(9.9, "healthy"), (10.0, "suspect"), (299.0, "suspect"), (300.0, "dead")]
)
def test_a_rank_that_broke_off_may_be_what_all_others_ask_for(silent: float, kind: str) -> None:
    """Or something outside may be: what is asked for is seen by nobody."""
    blamed = (0,) if kind != "healthy" else ()
    cause = "process_dead" if blamed else None
    assert told(job(_left(), _asking(silent))) == (kind, blamed, cause)


@pytest.mark.parametrize(("ending", "membership"), [("finished", "member"), ("running", "left")])
def test_a_rank_that_came_to_its_end_is_not_what_another_asks_for(
    ending: str, membership: str
) -> None:
    case = job(_left(ending, membership), _asking(60.0))
    assert told(case) == ("suspect", (1,), "rank_stalled")


@pytest.mark.parametrize(("newest", "kind"), [(4.0, "healthy"), (5.0, "suspect"), (30.0, "hang")])
def test_a_job_stands_still_since_the_last_progress_of_any_rank(newest: float, kind: str) -> None:
    """An evaluator has waited for minutes; those that train are idle between two steps."""
    evaluates = rank(1, IN_POLL, silent=200.0)
    assert told(job(rank(0, IN_LOAD, silent=newest), evaluates))[0] == kind


ACCEPTS = waiting_for("socket", "accept4", "")
OF_RANK = waiting_for("socket", "recvfrom", "127.0.0.1:29999", 100)
OF_OUTSIDER = waiting_for("socket", "recvfrom", "10.0.0.1:443")


@pytest.mark.parametrize(
    ("waits", "kind"),
    [*((one, "healthy") for one in ({}, SLEEPS, ACCEPTS, OF_RANK)), (OF_OUTSIDER, "hang")],
)
def test_an_idle_rank_for_which_nobody_waits_may_wait_for_those_that_advance(
    waits: dict[str, Any], kind: str
) -> None:
    moves = (IN_LOAD, (*IN_LOAD, IN_LOAD[-1]), IN_LOAD)
    trains = rank(0, *moves, silent=0.5, cpu=1.0)
    assert told(job(trains, rank(1, IN_POLL, silent=301.0, **waits)))[0] == kind
