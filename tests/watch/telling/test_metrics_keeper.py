"""How long a stall has lasted, as the file for Prometheus tells it."""

from __future__ import annotations

import time

import pytest
from cases import IN_BARRIER, IN_LOAD, SECOND, job, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.watch.telling.metrics_keeper import Stall

HANG = replace(judge(job(rank(0, IN_BARRIER), rank(1, IN_LOAD))), stalled_for_s=40.0)


def test_a_verdict_of_a_node_whose_clock_is_hours_off_is_as_old_as_it_says() -> None:
    told_ns = time.monotonic_ns()
    for since in ("2001-01-01T00:00:00.000Z", "2999-01-01T00:00:00.000Z"):
        stall = Stall()
        stall.note(replace(HANG, stalled_since=since), told_ns)
        assert stall.lasted_s(told_ns + 5 * SECOND) == pytest.approx(45.0)


def test_the_same_verdict_seen_again_is_no_new_stall() -> None:
    stall = Stall()
    stall.note(HANG, 100 * SECOND)
    stall.note(HANG, 110 * SECOND)
    assert stall.lasted_s(110 * SECOND) == pytest.approx(50.0)


def test_nothing_stalls_once_it_moves_again() -> None:
    stall = Stall()
    assert stall.lasted_s(100 * SECOND) == 0.0
    stall.note(HANG, 100 * SECOND)
    stall.note(replace(HANG, verdict="recovered"), 110 * SECOND)
    assert stall.lasted_s(111 * SECOND) == 0.0
    stall.note(None, 120 * SECOND)
    assert stall.lasted_s(121 * SECOND) == 0.0
