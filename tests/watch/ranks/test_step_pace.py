"""The pace of a rank's own steps, from readings of its page."""

from __future__ import annotations

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.ranks.step_pace import MARKS_KEPT, STEPS_KEPT, StepPace


def pace_of(*readings: tuple[float, int | None, int]) -> float | None:
    """The median after readings of (seconds, step, beats)."""
    pace = StepPace()
    for at_s, step, beats in readings:
        last_beat_ns = int(at_s * NANOSECONDS)
        pace.read(Beat(pid=1, step=step, beats=beats, last_beat_ns=last_beat_ns))
    return pace.median_s


def marks_of(now_s: float, *readings: tuple[float, int | None]) -> list[tuple[int, float]]:
    """Steps and how long ago they were made, after readings of (seconds, step)."""
    pace = StepPace()
    for at_s, step in readings:
        pace.read(Beat(pid=1, step=step, beats=3, last_beat_ns=int(at_s * NANOSECONDS)))
    return [(mark.step, mark.ago_s) for mark in pace.newest(int(now_s * NANOSECONDS))]


def test_when_the_newest_steps_were_made() -> None:
    assert marks_of(9.0, (1.0, 0), (3.0, 1), (3.5, 1), (5.0, 4)) == [(0, 8.0), (1, 6.0), (4, 4.0)]
    assert marks_of(9.0, (1.0, 8), (3.0, 9), (5.0, 0)) == [(0, 4.0)], "another training"
    assert marks_of(9.0, (1.0, None), (3.0, None)) == []
    many = [(float(at), at) for at in range(1, 100)]
    assert len(marks_of(100.0, *many)) == MARKS_KEPT


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
