"""The step times of a run of any length are kept in few marks, evenly spread over its steps."""

from __future__ import annotations

import itertools

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.step_times import StepTimes
from lightning_hangcheck.watch.ranks.step_history import MOST_MARKS, StepHistory


def test_marks_stay_few_and_evenly_spread() -> None:
    history = StepHistory()
    for steps in range(1, 10_001):
        history.read(Beat(pid=1, step_times=StepTimes(steps, steps * 0.1)))
    counts = [mark.steps for mark in history.marks]
    assert MOST_MARKS // 2 <= len(counts) <= MOST_MARKS
    assert counts[0] == 1
    gaps = {later - earlier for earlier, later in itertools.pairwise(counts)}
    assert len(gaps) == 1
    assert counts[-1] > 10_000 - 2 * gaps.pop()


def test_a_rank_that_times_nothing_has_none() -> None:
    history = StepHistory()
    history.read(Beat(pid=1))
    assert history.marks == ()
