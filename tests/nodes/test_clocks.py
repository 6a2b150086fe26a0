"""How far clocks of nodes are apart, from words that take any time in either direction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hangcheck.model.run import NodeClock
from lightning_hangcheck.nodes.clocks import KEPT_S, Clocks, Quickest, clock_of, worth_showing

DELAYS = st.lists(st.floats(0.001, 5.0), min_size=1, max_size=20)


AHEAD = st.floats(-36_000.0, 36_000.0)
OURS = Clocks(wall_s=1_000_000.0, up_s=500.0)


@given(AHEAD, AHEAD, DELAYS, DELAYS)
def test_the_difference_is_within_what_is_said(
    ahead_s: float, up_longer_s: float, there: list[float], back: list[float]
) -> None:
    words, answers = Quickest(), Quickest()
    for at, delay in enumerate(there):
        words.take(up_longer_s + delay, at)
    for at, delay in enumerate(back):
        answers.take(delay - up_longer_s, at)
    its = Clocks(OURS.wall_s + ahead_s - 1.0, OURS.up_s + up_longer_s - 1.0)
    clock = clock_of(1, words.least, answers.least, its, OURS)
    assert clock is not None
    assert abs(clock.ahead_s - ahead_s) <= clock.within_s + 0.002
    assert clock.within_s <= (min(there) + min(back)) / 2 + 0.002


@pytest.mark.parametrize("whose", ["its", "ours"])
def test_a_clock_that_was_set_is_known_with_the_next_word(whose: str) -> None:
    its, ours = Clocks(1_000_000.0, 70_000.0), OURS
    if whose == "its":
        its = its._replace(wall_s=its.wall_s + 3_600.0)
    else:
        ours = ours._replace(wall_s=ours.wall_s - 3_600.0)
    assert clock_of(1, 69_500.1, -69_499.9, its, ours) == NodeClock(1, 3_600.0, 0.1)


@pytest.mark.parametrize(("there", "here"), [(None, 0.1), (0.1, None), (-2.0, 1.0)])
def test_one_direction_or_a_host_that_was_replaced_tells_nothing(
    there: float | None, here: float | None
) -> None:
    assert clock_of(1, there, here, OURS, OURS) is None


def test_what_was_quick_long_ago_counts_no_more() -> None:
    quickest = Quickest()
    for seconds, at in ((0.1, 0.0), (0.5, KEPT_S), (0.4, 2 * KEPT_S), (0.6, 2 * KEPT_S + 1.0)):
        quickest.take(seconds, at)
    assert quickest.least == 0.4


def test_a_clock_is_shown_anew_only_where_it_is_better_known_or_another() -> None:
    shown = {1: NodeClock(1, 0.1, 0.4)}
    assert worth_showing({1: NodeClock(1, 0.15, 0.3)}, shown) == shown
    better, moved = {1: NodeClock(1, 0.15, 0.1)}, {1: NodeClock(1, 3.0, 0.4)}
    assert worth_showing(better, shown) == better
    assert worth_showing(moved, shown) == moved
