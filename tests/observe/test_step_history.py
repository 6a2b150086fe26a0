"""A rank's steps, from readings of its page: when they were made, and how long they take."""

from __future__ import annotations

import itertools

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.step_times import StepTimes
from lightning_hangcheck.observe.progress import MARKS_TOLD, MOST_SUMS, STEPS_KEPT, StepHistory
from lightning_hangcheck.text.moments import NANOSECONDS


def pace_of(*readings: tuple[float, int | None, int]) -> float | None:
    """The median after readings of (seconds, step, beats)."""
    pace = StepHistory()
    for at_s, step, beats in readings:
        last_beat_ns = int(at_s * NANOSECONDS)
        pace.read(Beat(pid=1, step=step, beats=beats, last_beat_ns=last_beat_ns))
    return pace.median_s


def marks_of(now_s: float, *readings: tuple[float, int | None]) -> list[tuple[int, float]]:
    """Steps and how long ago they were made, after readings of (seconds, step)."""
    pace = StepHistory()
    for at_s, step in readings:
        pace.read(Beat(pid=1, step=step, beats=3, last_beat_ns=int(at_s * NANOSECONDS)))
    return [(mark.step, mark.ago_s) for mark in pace.newest(int(now_s * NANOSECONDS))]


def test_when_the_newest_steps_were_made() -> None:
    assert marks_of(9.0, (1.0, 0), (3.0, 1), (3.5, 1), (5.0, 4)) == [(0, 8.0), (1, 6.0), (4, 4.0)]
    assert marks_of(9.0, (1.0, 8), (3.0, 9), (5.0, 0)) == [(0, 4.0)], "another training"
    assert marks_of(9.0, (1.0, None), (3.0, None)) == []
    many = [(float(at), at) for at in range(1, 100)]
    assert len(marks_of(100.0, *many)) == MARKS_TOLD


def test_a_step_that_is_long_leaves_the_median() -> None:
    steps = [(10.0, 0, 0), (40.0, 1, 1), (42.0, 2, 2), (44.0, 3, 3), (50.0, 4, 4), (52.0, 5, 5)]
    assert pace_of(*steps) == 2.0


def test_steps_between_two_readings_share_their_time() -> None:
    assert pace_of((1.0, 0, 0), (2.0, 4, 4), (5.0, 5, 5)) == 0.25


def test_readings_of_the_same_step_change_nothing() -> None:
    assert pace_of((1.0, 1, 1), (1.5, 1, 3), (3.0, 2, 9)) == 2.0


def test_before_a_step_was_seen_whole_nothing_is_known() -> None:
    assert pace_of() is None
    assert pace_of((1.0, 7, 7)) is None


def test_a_loop_that_shows_no_steps_is_told_by_its_beats() -> None:
    assert pace_of((1.0, None, 3), (4.0, None, 4)) == 3.0


def test_a_second_training_is_measured_afresh() -> None:
    assert pace_of((1.0, 8, 8), (31.0, 9, 9), (40.0, 0, 10), (41.0, 1, 11)) == 1.0


def test_a_fast_loop_keeps_only_its_newest_steps() -> None:
    before = [(1.0 + at, at, at) for at in range(STEPS_KEPT)]
    last = float(STEPS_KEPT)
    assert pace_of(*before, (last + 1.0, 1_000_000, 1_000_000)) == 1.0 / (1_000_001 - STEPS_KEPT)


def test_marks_stay_few_and_evenly_spread() -> None:
    history = StepHistory()
    for steps in range(1, 10_001):
        history.read(Beat(pid=1, step_times=StepTimes(steps, steps * 0.1)))
    counts = [mark.steps for mark in history.sums]
    assert MOST_SUMS // 2 <= len(counts) <= MOST_SUMS
    assert counts[0] == 1
    gaps = {later - earlier for earlier, later in itertools.pairwise(counts)}
    assert len(gaps) == 1
    assert counts[-1] > 10_000 - 2 * gaps.pop()


def test_a_rank_that_times_nothing_has_none() -> None:
    history = StepHistory()
    history.read(Beat(pid=1))
    assert history.sums == ()
