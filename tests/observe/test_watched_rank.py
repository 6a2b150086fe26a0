"""One rank's signs of life that come from looks."""

from __future__ import annotations

import signal

import pytest

from lightning_hangcheck.judge.exits import left_well
from lightning_hangcheck.look.sample import Target
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
)
from lightning_hangcheck.model.flight import CollectiveRecord, FlightRecord
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.watched_rank import WatchedRank, WatchedRound

SECOND = 1_000_000_000


def watched() -> WatchedRank:
    return WatchedRank(FoundRank(rank=0, local_rank=0, pid=1, world_size=2), 0)


def flight(at_s: int, entered: int) -> FlightRecord:
    group = CollectiveRecord(group="0", last_enqueued=entered, last_completed=entered - 1)
    return FlightRecord(taken_ns=at_s * SECOND, groups=(group,))


def silence(rank: WatchedRank, now_s: int) -> float:
    return rank.progress.silent_ns(now_s * SECOND) / SECOND


@pytest.mark.parametrize(
    ("records", "silent_s"),
    [
        ([flight(2, entered=5), flight(4, entered=6)], 5.0),
        ([flight(2, entered=5), flight(4, entered=5)], 9.0),
        ([flight(2, entered=5), None, flight(6, entered=9)], 3.0),
    ],
    ids=["a collective between two looks", "one that stays", "a look without a record"],
)
def test_a_collective_between_two_looks_is_movement(
    records: list[FlightRecord | None], silent_s: float
) -> None:
    rank = watched()
    for record in records:
        rank.read_flight(record)
    assert silence(rank, 9) == silent_s


def test_collectives_of_an_earlier_silence_say_nothing_of_this_one() -> None:
    rank = watched()
    rank.read_flight(flight(2, entered=5))
    rank.progress.saw_movement(10 * SECOND)
    rank.read_flight(flight(12, entered=50))
    assert silence(rank, 19) == 9.0


def numbers(rank: WatchedRank, at_s: int, entered: int, ended: int) -> None:
    rank.read_numbers({"0": (entered, ended)}, at_s * SECOND)


def test_numbers_of_collectives_that_go_on_are_progress() -> None:
    rank, stays = watched(), watched()
    numbers(rank, 2, 5, 4)
    numbers(rank, 3, 5, 5)
    assert silence(rank, 9) == 6.0
    numbers(stays, 2, 5, 4)
    stays.read_numbers({}, 3 * SECOND)  # no answer
    numbers(stays, 4, 5, 4)
    assert silence(stays, 9) == 9.0


def test_numbers_of_an_earlier_silence_say_nothing_of_this_one() -> None:
    rank = watched()
    numbers(rank, 2, 5, 4)
    rank.read(Beat(pid=1, beats=9, last_beat_ns=7 * SECOND), 7 * SECOND)
    numbers(rank, 9, 50, 49)
    assert silence(rank, 10) == 3.0
    numbers(rank, 11, 51, 50)
    assert silence(rank, 12) == 1.0


def found_in(function: str, at_s: int, pid: int = 1) -> Sample:
    main = ThreadStack(tid=pid, frames=(Frame(function, "train.py", 1),))
    stack = ProcessStack(pid=pid, source="py-spy", threads=(main,))
    return Sample(taken_ns=at_s * SECOND, stack=stack)


def test_a_rank_and_its_workers_circle_from_the_last_look_that_met_a_new_function() -> None:
    rank, own = watched(), Target(rank=0, pid=1, role="rank")
    loads = Target(rank=0, pid=2, role="worker")
    for at_s, function in ((2, "fetch"), (3, "crop"), (4, "fetch")):
        rank.add_samples([(own, found_in("wait", at_s)), (loads, found_in(function, at_s, 2))])
    assert rank.view(9 * SECOND).nothing_new_for_s == 6.0
    rank.read_flight(flight(7, entered=1))
    rank.read_flight(flight(8, entered=2))
    assert rank.view(9 * SECOND).nothing_new_for_s == 1.0


def test_each_stop_is_counted_from_its_own_beginning() -> None:
    rank = WatchedRank(FoundRank(rank=1, pid=1), 0)
    told = []
    for second, state in enumerate("STTTSTT"):
        rank.read_state(state, second * SECOND)
        told.append(rank.view(second * SECOND).stopped_for_s)
    assert told == [None, 0.0, 1.0, 2.0, None, 0.0, 1.0]


def test_a_rank_ends_with_its_training_however_its_process_ends_later() -> None:
    """An actor of Ray Train lives on, and is killed when the last rank is done."""
    round_ = WatchedRound(0)
    rank = round_.take_in(FoundRank(rank=0, pid=1, world_size=2), 0)
    rank.read(Beat(pid=1, training="beside"), SECOND)
    round_.note_words()
    assert round_.alive == [rank]

    rank.read(Beat(pid=1, training="over", ending="finished", ended_ns=2), 2 * SECOND)
    round_.note_words()
    assert round_.alive == []
    round_.note_exit(1, -9)
    (view,) = round_.views(3 * SECOND)
    assert left_well(view)

    rank.read(Beat(pid=1, training="beside", ending="finished"), 4 * SECOND)
    round_.note_words()
    assert round_.alive == [rank], "it trains anew"


def looked_at(beat: Beat | None, *frames: Frame, child: bool = False) -> Sample:
    """What is kept of a look at a rank that catches a signal."""
    rank = watched()
    rank.beat = beat
    kernel = ProcessState(
        pid=1, parent_pid=0, state="S", started_ticks=1, cpu_s=0.0, catches_timers=True
    )
    stack = ProcessStack(pid=1, source="py-spy", threads=(ThreadStack(tid=1, frames=frames),))
    samples = [
        (Target(pid=1, rank=0, role="rank"), Sample(taken_ns=SECOND, kernel=kernel, stack=stack))
    ]
    if child:
        samples.append((Target(pid=2, rank=0, role="child"), Sample(taken_ns=SECOND)))
    rank.add_samples(samples)
    return rank.view(SECOND).processes[0].samples[-1]


@pytest.mark.parametrize(
    ("handled", "child", "wakes"),
    [
        (None, False, True),
        ((), True, False),
        ((signal.SIGUSR1,), False, True),
        ((signal.SIGCHLD,), False, False),
        ((signal.SIGCHLD,), True, True),
    ],
)
def test_a_signal_wakes_a_rank_only_by_a_handler_of_the_users(
    handled: tuple[int, ...] | None, child: bool, wakes: bool
) -> None:
    kernel = looked_at(Beat(pid=1, handled_signals=handled), child=child).kernel
    assert kernel.catches_timers == wakes


IN_LOOP = (
    Frame("<module>", "train.py", 30),
    Frame("BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1884),
    Frame("EpollSelector.select", "/usr/lib/python3.11/selectors.py", 468),
)


def test_a_coroutine_stands_below_the_loop_that_waits_for_it() -> None:
    awaits = Frame("next_rollout", "train.py", 12)
    beat = Beat(pid=1, awaiting=(awaits,))
    stack = looked_at(beat, *IN_LOOP).stack
    assert stack.threads[0].frames == (IN_LOOP[0], awaits, *IN_LOOP[1:])
    elsewhere = looked_at(beat, *IN_LOOP[:1]).stack
    assert elsewhere.threads[0].frames == IN_LOOP[:1]
