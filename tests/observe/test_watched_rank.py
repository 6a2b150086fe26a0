"""One rank's signs of life that come from looks."""

from __future__ import annotations

import signal

import pytest

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
from lightning_hangcheck.observe.watched_rank import WatchedRank

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
        ([flight(2, entered=5), None, flight(6, entered=9)], 9.0),
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


def looked_at(beat: Beat, *, child: bool) -> Sample:
    """What is kept of a look at a rank that catches a signal."""
    rank = watched()
    rank.beat = beat
    kernel = ProcessState(
        pid=1, parent_pid=0, state="S", started_ticks=1, cpu_s=0.0, catches_timers=True
    )
    samples = [(Target(pid=1, rank=0, role="rank"), Sample(taken_ns=SECOND, kernel=kernel))]
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
        ((signal.SIGCHLD,), True, True),
    ],
)
def test_a_signal_wakes_a_rank_only_by_a_handler_of_the_users(
    handled: tuple[int, ...] | None, child: bool, wakes: bool
) -> None:
    kernel = looked_at(Beat(pid=1, handled_signals=handled), child=child).kernel
    assert kernel.catches_timers == wakes
