"""When a job is looked at: never while all is well, often while it is suspicious, then less."""

from __future__ import annotations

import os
from itertools import pairwise

from lightning_hangcheck.model.case import Limits
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.watched_rank import WatchedRank
from lightning_hangcheck.watch.schedule import Schedule, figures_of

SECOND = 1_000_000_000


def looks_of_a_silence(
    schedule: Schedule,
    until_s: float,
    *,
    suspicious: bool,
    pause_s: float = 0.0,
    begins_s: float = 0.0,
    idle: bool = False,
) -> list[float]:
    """Times into a silence at which it is looked at, read four times a second; 0.1 s a look."""
    looks, now_s = [], 0.0
    while now_s <= until_s:
        now_ns = int((begins_s + now_s) * SECOND)
        if schedule.due(now_s, pause_s, now_s if idle else 0.0, now_ns):
            schedule.looked(now_ns, suspicious=suspicious, cost_s=0.1)
            looks.append(now_s)
        now_s += 0.25
    return looks


def test_looks_come_when_the_table_may_say_something_new_and_then_less_and_less() -> None:
    """At 3 and 5 s what nobody can end, and 10 s whatever it is; progress begins that anew."""
    schedule = Schedule(2.0)
    looks = looks_of_a_silence(schedule, 300.0, suspicious=False)
    assert looks[:6] == [2.0, 3.0, 4.0, 5.0, 7.5, 10.0]
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 30.0
    assert not schedule.due(0.1, 0.0, 0.0, 301 * SECOND)
    assert schedule.due(2.0, 0.0, 0.0, 303 * SECOND)


def test_a_silence_that_passes_a_figure_of_the_table_is_looked_at_at_once() -> None:
    schedule = Schedule(2.0)
    looks_of_a_silence(schedule, 29.0, suspicious=True)
    schedule.looked(29 * SECOND, suspicious=True)
    assert not schedule.due(29.5, 0.0, 0.0, int(29.5 * SECOND), passed=3)
    assert not schedule.due(29.75, 0.0, 0.0, int(29.75 * SECOND), passed=4), "not twice in 0.8 s"
    assert schedule.due(30.0, 0.0, 0.0, 30 * SECOND, passed=4)


def test_the_look_for_a_figure_begins_early_enough_to_be_judged_as_it_is_passed() -> None:
    """A rank is silent for 10 s: the look takes half a second, and a reading comes each quarter."""
    schedule, rank = Schedule(2.0, foreseen=(10.0,)), silent_rank()
    assert not schedule.due_for([rank], 2 * SECOND - 1)
    assert schedule.due_for([rank], 2 * SECOND)
    for begun_s in (2.0, 4.0, 6.0, 8.0):
        schedule.looked(int(begun_s * SECOND), suspicious=True, lasted_s=0.5)
    schedule.judged([rank], int(8.5 * SECOND))
    assert not schedule.due_for([rank], int(9.25 * SECOND))
    assert schedule.due_for([rank], int(9.5 * SECOND))
    schedule.looked(int(9.5 * SECOND), suspicious=True, lasted_s=0.5)
    assert not schedule.says_more([rank], 10 * SECOND - 1)
    assert schedule.says_more([rank], 10 * SECOND)
    schedule.judged([rank], 10 * SECOND)
    assert not schedule.says_more([rank], int(10.25 * SECOND))
    rank.read_state("T", int(0.5 * SECOND))
    assert schedule.says_more([rank], int(10.5 * SECOND)), "seen stopped after it fell silent"
    schedule.judged([rank], 9 * SECOND)
    assert not schedule.says_more([rank], 12 * SECOND), "an old look is not judged again"


def silent_rank() -> WatchedRank:
    """A rank that has told nothing since the clock began."""
    return WatchedRank(FoundRank(rank=0, pid=os.getpid(), started_ticks=1), 0)


def test_the_figures_are_those_of_the_table() -> None:
    foreseen, others = figures_of(Limits())
    assert set(foreseen) == {3.0, 5.0, 10.0}
    assert set(others) == {15.0, 30.0, 120.0, 300.0}


def test_what_only_time_makes_a_hang_is_looked_at_after_it() -> None:
    schedule, rank = Schedule(2.0, others=(30.0,)), silent_rank()
    for begun_s in (2, 12, 22, 28):
        schedule.looked(begun_s * SECOND, suspicious=True, lasted_s=0.5)
    assert not schedule.due_for([rank], int(29.75 * SECOND))
    assert schedule.due_for([rank], 30 * SECOND)
    assert not schedule.says_more([rank], 30 * SECOND)


def test_looks_at_an_alarm_that_stands_come_at_twice_the_time_up_to_a_minute() -> None:
    looks = looks_of_a_silence(Schedule(2.0), 300.0, suspicious=True)
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert gaps == [1.0, 1.0, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]


def test_where_something_moves_while_an_alarm_stands_it_is_looked_at_often_again() -> None:
    schedule = Schedule(2.0)
    looks_of_a_silence(schedule, 150.0, suspicious=True)
    schedule.looked(160 * SECOND, suspicious=True, moved=True)
    assert not schedule.due(162.0, 0.0, 0.0, 162 * SECOND)
    assert schedule.due(162.5, 0.0, 0.0, int(162.5 * SECOND))


def test_a_pause_that_is_usual_here_is_no_surprise_up_to_8_s_or_where_all_are_idle() -> None:
    assert looks_of_a_silence(Schedule(2.0), 5.5, suspicious=True, pause_s=2.0) == []
    assert looks_of_a_silence(Schedule(2.0), 10.0, suspicious=True, pause_s=60.0)[0] == 8.0
    looks = looks_of_a_silence(Schedule(2.0), 5.0, suspicious=True, pause_s=60.0, idle=True)
    assert looks[:4] == [2.0, 3.0, 4.0, 5.0]


def test_ranks_that_often_pause_together_are_looked_at_for_1_percent_of_a_core() -> None:
    """Each step is 4 s without processor time: 600 s of them, with 0.1 s a look."""
    schedule = Schedule(2.0)
    looks = sum(
        len(
            looks_of_a_silence(
                schedule, 4.0, suspicious=False, pause_s=4.0, begins_s=4.25 * step, idle=True
            )
        )
        for step in range(140)
    )
    assert 6 <= looks <= 60


def test_a_busy_rank_that_turns_idle_is_looked_at_again_at_once() -> None:
    schedule = Schedule(2.0)
    looks = looks_of_a_silence(schedule, 100.0, suspicious=False)
    turned_idle_s = looks[-1] + 1.0
    now_s = turned_idle_s + 2.0
    assert schedule.due(now_s, 0.0, now_s - turned_idle_s, int(now_s * SECOND))


def test_a_rank_that_stands_still_after_it_moved_is_looked_at_again_soon() -> None:
    schedule = Schedule(2.0)
    looks_of_a_silence(schedule, 100.0, suspicious=False)
    schedule.looked(130 * SECOND, suspicious=False, stood_still=True)
    assert schedule.due(131.0, 0.0, 0.0, 131 * SECOND)


def test_looks_at_ranks_that_are_only_slow_cost_no_more_than_a_hundredth_of_a_core() -> None:
    schedule, spent_s = Schedule(2.0), 0.0
    for second in range(2, 3600):
        if schedule.due(float(second), 0.0, 0.0, second * SECOND):
            schedule.looked(second * SECOND, suspicious=False, cost_s=0.8)
            spent_s += 0.8
    assert spent_s <= 0.01 * 3600 + 9 * 0.8  # those that begin the silence come on top


def test_one_that_stands_still_now_and_then_is_not_looked_at_all_the_time() -> None:
    schedule, looks = Schedule(2.0), 0
    for second in range(2, 600):
        if schedule.due(float(second), 0.0, 0.0, second * SECOND):
            looks += 1
            schedule.looked(second * SECOND, suspicious=False, stood_still=looks % 2 == 0)
    assert looks <= 60  # a tenth of a core-second each: 1 %
