"""What of a rank's page and processes is progress, and what numbers of collectives tell."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, NOW_NS, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.exits import left_well
from lightning_hangcheck.look.sample import Target
from lightning_hangcheck.model.beat import Beat, OpenSection
from lightning_hangcheck.model.case import Case, RunFacts
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.evidence import (
    Frame,
    Holder,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
    WaitTarget,
)
from lightning_hangcheck.model.flight import CollectiveRecord, FlightRecord
from lightning_hangcheck.observe import run_record as saving
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.progress import (
    MARKS_TOLD,
    MOST_PLACES,
    ProcessorTime,
    Progress,
    StepHistory,
)
from lightning_hangcheck.observe.run_record import save_page
from lightning_hangcheck.observe.watched_rank import WatchedRank, WatchedRound
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000


def beat(at_s: float, phase: str = "training_step", section: str = "") -> Beat:
    sections = (OpenSection(section, 0),) if section else ()
    return Beat(pid=1, beats=1, last_beat_ns=int(at_s * SECOND), phase=phase, sections=sections)  # type: ignore[arg-type]


def read_beats(progress: Progress, *times_s: float, phase: str = "training_step") -> None:
    for at_s in times_s:
        progress.read_beat(beat(at_s, phase), int(at_s * SECOND))


def silence(progress: Progress, now_s: float) -> float:
    return progress.silent_ns(int(now_s * SECOND)) / SECOND


def idleness(progress: Progress, now_s: float) -> float:
    return progress.idle_ns(int(now_s * SECOND)) / SECOND


def use_processor(
    progress: Progress, from_s: int, to_s: int, share: float, *, main: bool = True
) -> None:
    """Use so much of a core, read four times a second."""
    for quarter in range(4 * from_s, 4 * to_s + 1):
        used = (quarter / 4 - from_s) * share
        now_ns = quarter * SECOND // 4
        progress.read_processor(ProcessorTime(used if main else 0.0, used), now_ns)


def test_what_a_rank_tells_and_what_looks_saw_is_progress() -> None:
    told, seen = Progress(0), Progress(0)
    told.read_collectives(7 * SECOND)  # another number of its collectives
    assert silence(told, 9.0) == 2.0
    assert told.since_reported_ns(9 * SECOND) == told.circling_ns(9 * SECOND) == 2 * SECOND
    seen.saw_movement(7 * SECOND)
    assert silence(seen, 9.0) == 2.0
    assert seen.since_reported_ns(9 * SECOND) == 9 * SECOND, "no word of the rank"


def test_a_pause_in_which_a_look_saw_the_rank_elsewhere_is_none_of_the_place() -> None:
    progress = Progress(0)
    read_beats(progress, 1.0, 1.1, 1.2, 1.3, 1.4)
    progress.read_beat(beat(1.4), 61 * SECOND)  # an evaluation that comes once an epoch
    progress.saw_elsewhere("validation")
    read_beats(progress, 61.5, 61.6)
    pace = progress.pace()
    assert pace.longest_pause_s < 1.0


def test_what_comes_once_in_many_steps_has_a_pace_as_soon_as_it_was_seen_twice() -> None:
    progress = Progress(0)
    for began_s in (0, 100, 200):
        read_beats(progress, *(began_s + part for part in (1.0, 1.1, 1.2, 1.3, 1.4)))
        progress.read_beat(beat(began_s + 1.4), (began_s + 61) * SECOND)
        progress.saw_elsewhere("optimizer_step")
        pace = progress.pace("optimizer_step")
        assert (pace is not None and pace.known) == (began_s == 200)
    assert 59 < pace.longest_pause_s < 60
    assert progress.pace("validation") is None


@pytest.mark.parametrize(
    ("share", "main", "idle_s"),
    [
        (0.9, True, 3.0),  # one that computed silently and then waits is idle since it waits
        (0.1, False, 102.0),  # a helper thread that wakes now and then
        (3.0, False, 3.0),  # threads that compute for an idle main thread
    ],
)
def test_a_rank_is_idle_since_its_threads_last_computed(
    share: float, main: bool, idle_s: float
) -> None:
    progress = Progress(0)
    read_beats(progress, 1.0)
    use_processor(progress, 1, 100, share=share, main=main)
    use_processor(progress, 101, 103, share=0.0)
    assert silence(progress, 103.0) == 102.0
    assert idleness(progress, 103.0) == idle_s


def test_a_rank_that_stops_within_a_window_is_idle_from_there_on() -> None:
    progress = Progress(0)
    for quarter, used in enumerate((0.0, 0.25, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3)):
        progress.read_processor(ProcessorTime(used, used), quarter * SECOND // 4)
    assert idleness(progress, 5.0) == 4.5


def test_one_tick_of_the_kernels_clock_is_no_activity_however_short_the_reading() -> None:
    progress = Progress(0)
    read_beats(progress, 1.0)
    progress.read_processor(ProcessorTime(0.0, 0.0), 1 * SECOND)
    progress.read_processor(ProcessorTime(0.01, 0.01), 1 * SECOND + SECOND // 20)
    assert idleness(progress, 5.0) == 4.0


def test_a_time_that_nobody_watched_does_not_count() -> None:
    progress = Progress(0)
    read_beats(progress, 1.0)
    progress.forgive(60 * SECOND, 63 * SECOND)
    assert silence(progress, 63.0) == 2.0
    assert progress.circling_ns(63 * SECOND) == 3 * SECOND


def test_the_first_pause_in_a_place_teaches_nothing() -> None:
    progress = Progress(0)
    read_beats(progress, 1.0)
    progress.read_beat(beat(1.0), 40 * SECOND)  # a first step that compiles for 40 s
    for at_s in (41.0, 42.0, 43.0):
        progress.read_beat(beat(at_s), int((at_s + 0.9) * SECOND))
    progress.read_beat(beat(44.0), 44 * SECOND)
    pace = progress.pace()
    assert pace.known
    assert pace.longest_pause_s == 0.9


def test_steps_that_went_by_between_two_readings_teach_the_pace_of_the_whole_loop() -> None:
    progress = Progress(0)
    for at_s, step in ((1.0, 0), (1.25, 1), (1.5, 3), (1.75, 5)):
        reading = Beat(pid=1, beats=1, last_beat_ns=int(at_s * SECOND), phase="backward", step=step)
        progress.read_beat(reading, int(at_s * SECOND))
    stuck = Beat(pid=1, beats=2, last_beat_ns=2 * SECOND, phase="training_step", step=5)
    progress.read_beat(stuck, 2 * SECOND)
    pace = progress.pace()
    assert pace.known
    assert pace.longest_pause_s < 1.0


def test_steps_teach_nothing_of_validation() -> None:
    progress = Progress(0)
    for step in range(10):
        reading = Beat(pid=1, beats=1, last_beat_ns=step + 1, phase="backward", step=step)
        progress.read_beat(reading, step + 1)
    progress.read_beat(Beat(pid=1, beats=2, last_beat_ns=99, phase="validation", step=9), 99)
    assert progress.pace() is None


def test_a_rank_circles_from_its_last_beat_or_its_last_new_sign() -> None:
    progress = Progress(0)
    progress.saw_new(2 * SECOND)
    progress.saw_movement(6 * SECOND)
    assert progress.circling_ns(9 * SECOND) == 7 * SECOND
    read_beats(progress, 8.0)
    assert progress.circling_ns(9 * SECOND) == SECOND


def test_a_section_with_a_number_in_its_name_is_one_place_however_many_there_are() -> None:
    progress = Progress(0)
    for number in range(1000):
        at_s = 1.0 + number / 10
        progress.read_beat(beat(at_s, section=f"batch {number}"), int(at_s * SECOND))
    pace = progress.pace()
    assert pace.known
    assert pace.longest_pause_s < 1.0


def test_a_place_that_was_left_long_ago_has_no_known_pace_any_more() -> None:
    progress = Progress(0)
    names = ["first", *(f"s{'x' * number}" for number in range(MOST_PLACES)), "first"]
    for index, name in enumerate(names):
        for part in range(5):
            at_s = 1.0 + index + part / 10
            progress.read_beat(beat(at_s, "validation", name), int(at_s * SECOND))
    assert progress.pace().pauses < 5


def pace_of(*readings: tuple[float, int | None, int]) -> float | None:
    """The median after readings of (seconds, step, beats)."""
    pace = StepHistory()
    for at_s, step, beats in readings:
        last_beat_ns = int(at_s * SECOND)
        pace.read(Beat(pid=1, step=step, beats=beats, last_beat_ns=last_beat_ns))
    return pace.median_s


def marks_of(now_s: float, *readings: tuple[float, int | None]) -> list[tuple[int, float]]:
    """Steps and how long ago they were made, after readings of (seconds, step)."""
    pace = StepHistory()
    for at_s, step in readings:
        pace.read(Beat(pid=1, step=step, beats=3, last_beat_ns=int(at_s * SECOND)))
    return [(mark.step, mark.ago_s) for mark in pace.newest(int(now_s * SECOND))]


def test_when_the_newest_steps_were_made() -> None:
    assert marks_of(9.0, (1.0, 0), (3.0, 1), (3.5, 1), (5.0, 4)) == [(0, 8.0), (1, 6.0), (4, 4.0)]
    assert marks_of(9.0, (1.0, 8), (3.0, 9), (5.0, 0)) == [(0, 4.0)], "another training"
    assert marks_of(9.0, (1.0, None), (3.0, None)) == []
    many = [(float(at), at) for at in range(1, 100)]
    assert len(marks_of(100.0, *many)) == MARKS_TOLD


@pytest.mark.parametrize(
    ("readings", "median_s"),
    [
        ([(10, 0, 0), (40, 1, 1), (42, 2, 2), (44, 3, 3), (50, 4, 4), (52, 5, 5)], 2.0),
        ([(1, 0, 0), (2, 4, 4), (5, 5, 5)], 0.25),  # steps between two readings share their time
        ([(1, 1, 1), (1.5, 1, 3), (3, 2, 9)], 2.0),  # the same step
        ([], None),
        ([(1, 7, 7)], None),  # before one was seen whole
        ([(1, None, 3), (4, None, 4)], 3.0),  # a loop that shows no steps, by its beats
        ([(1, 8, 8), (31, 9, 9), (40, 0, 10), (41, 1, 11)], 1.0),  # a second training
    ],
)
def test_a_step_that_is_long_leaves_the_median(
    readings: list[tuple[float, int | None, int]], median_s: float | None
) -> None:
    assert pace_of(*readings) == median_s


CASE = Case(
    run=RunFacts(run_id="run", command="train.py", started_at="2026-11-20T10:23:01Z", world_size=2),
    taken_at="2026-11-20T10:24:16.000000Z",
    taken_ns=NOW_NS,
    ranks=(rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD)),
)
VERDICT = judge(CASE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """On a busy machine; what is waited for is the page, not the time."""
    monkeypatch.setattr(saving, "PAGE_WAIT_S", 30.0)
    return prepare_run_folder(RunFolder(tmp_path / "run"))


def test_a_page_that_fails_is_said_once_and_an_older_one_does_not_replace_a_newer(
    folder: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that took long is finished after the next verdict came."""
    folder.page_file.mkdir()
    for _ in range(2):
        save_page(folder, 1, CASE, VERDICT)
    assert capfd.readouterr().err.count("report.html was not written (IsADirectoryError") == 1
    folder.page_file.rmdir()
    newer = msgspec.structs.replace(VERDICT, summary="newer")
    for number, verdict in ((1, VERDICT), (2, newer)):
        folder.numbered_verdict(number).write_bytes(encode_pretty(verdict))
    save_page(folder, 2, CASE, newer)
    save_page(folder, 1, CASE, VERDICT)
    page = folder.page_file.read_text()
    assert "newer" in page
    assert page.count(VERDICT.summary) == 1, "among the earlier ones"


# One rank's signs of life that come from looks.


def watched() -> WatchedRank:
    return WatchedRank(FoundRank(rank=0, local_rank=0, pid=1, world_size=2), 0)


def flight(at_s: int, entered: int) -> FlightRecord:
    group = CollectiveRecord(group="0", last_enqueued=entered, last_completed=entered - 1)
    return FlightRecord(taken_ns=at_s * SECOND, groups=(group,))


def silence_of(rank: WatchedRank, now_s: int) -> float:
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
    assert silence_of(rank, 9) == silent_s


def test_collectives_of_an_earlier_silence_say_nothing_of_this_one() -> None:
    rank = watched()
    rank.read_flight(flight(2, entered=5))
    rank.progress.saw_movement(10 * SECOND)
    rank.read_flight(flight(12, entered=50))
    assert silence_of(rank, 19) == 9.0


def numbers(rank: WatchedRank, at_s: int, entered: int, ended: int) -> None:
    rank.read_numbers({"0": (entered, ended)}, at_s * SECOND)


def test_numbers_of_collectives_that_go_on_are_progress() -> None:
    rank, stays = watched(), watched()
    numbers(rank, 2, 5, 4)
    numbers(rank, 3, 5, 5)
    assert silence_of(rank, 9) == 6.0
    numbers(stays, 2, 5, 4)
    stays.read_numbers({}, 3 * SECOND)  # no answer
    numbers(stays, 4, 5, 4)
    assert silence_of(stays, 9) == 9.0


def test_numbers_of_an_earlier_silence_say_nothing_of_this_one() -> None:
    rank = watched()
    numbers(rank, 2, 5, 4)
    rank.read(Beat(pid=1, beats=9, last_beat_ns=7 * SECOND), 7 * SECOND)
    numbers(rank, 9, 50, 49)
    assert silence_of(rank, 10) == 3.0
    numbers(rank, 11, 51, 50)
    assert silence_of(rank, 12) == 1.0


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


@pytest.mark.parametrize(("of_job", "silent_s"), [((1,), 3.0), ((1, 900), 9.0)])
def test_another_jobs_work_under_a_lock_is_movement_of_who_waits_for_the_lock(
    of_job: tuple[int, ...], silent_s: float
) -> None:
    """It packs piece by piece, and rests for longer than a look takes."""
    rank = watched()
    for at_s, moved in ((2, 0), (4, 0), (6, 9_000_000), (8, 9_000_000)):
        holder = Holder(pid=900, moved_bytes=moved)
        lock = WaitTarget(call="flock", kind="lock", name="/data/a.lock", holders=(holder,))
        state = ThreadState(tid=1, state="S", cpu_s=0.0, waits_for=(lock,))
        kernel = ProcessState(
            pid=1, parent_pid=0, state="S", started_ticks=1, cpu_s=0.0, threads=(state,)
        )
        sample = replace(found_in("prepare", at_s), kernel=kernel)
        rank.add_samples([(Target(rank=0, pid=1, role="rank"), sample)])
        rank.note_activity(at_s * SECOND, [("", pid) for pid in of_job])
    assert silence_of(rank, 9) == silent_s


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
