"""When nodes use a folder beside a store."""

from __future__ import annotations

from typing import Any

from lightning_hangcheck.nodes.judging.moving import MOVED_AFTER_S, NEVER_ANSWERED_S, Moving

CALM: dict[str, Any] = {"trouble": False, "answered": True, "others": False, "ends": False}


def test_a_store_that_answers_is_kept() -> None:
    moving = Moving()
    assert not any(moving.look(float(second), **CALM) for second in range(1_000))


def test_one_that_was_lost_for_some_seconds_is_left_for_good() -> None:
    moving = Moving()
    lost = {**CALM, "trouble": True}
    assert not moving.look(0.0, **CALM)
    assert not moving.look(1.0, **lost)
    assert moving.look(1.0 + MOVED_AFTER_S, **lost)
    assert moving.look(99.0, **CALM), "a store that is back is used as well, not instead"


def test_a_short_trouble_is_none() -> None:
    moving = Moving()
    for second in range(100):
        assert not moving.look(float(second), **{**CALM, "trouble": second % 4 != 0})


def test_a_store_that_is_not_there_yet_has_the_time_of_a_start() -> None:
    moving = Moving()
    late = {**CALM, "trouble": True, "answered": False}
    assert not moving.look(0.0, **late)
    assert not moving.look(NEVER_ANSWERED_S - 1.0, **late)
    assert moving.look(NEVER_ANSWERED_S, **late)


def test_whoever_sees_another_move_moves() -> None:
    assert Moving().look(0.0, **{**CALM, "others": True})


def test_at_the_end_of_a_job_nobody_waits_for_a_store_that_is_gone() -> None:
    moving = Moving()
    assert not moving.look(0.0, **{**CALM, "ends": True})
    assert moving.look(0.1, **{**CALM, "ends": True, "trouble": True})
