"""Hours of steps of many kinds: nothing is told wrongly, and what is slow is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from watch.pace.simulated_hours import KINDS, told, told_of_slow_rank

if TYPE_CHECKING:
    from watch.pace.simulated_hours import Kind

HOURS = 6.0


@pytest.mark.parametrize("in_parts", [True, False], ids=["parts", "whole"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_usual_loop_is_called_slow(kind: Kind, *, in_parts: bool) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        assert told(kind(rng, 10 ** rng.uniform(0, 0.7)), HOURS, in_parts=in_parts) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_rank_is_called_so_once(seed: int) -> None:
    who, verdicts = told_of_slow_rank(random.Random(seed), 9.0, in_parts=True)
    assert [(one.culprits, one.victims) for one in verdicts] == [((who,), (1 - who,))]
    _, verdicts = told_of_slow_rank(random.Random(seed), 9.0, in_parts=False)
    assert [one.culprits for one in verdicts] == [(0, 1)]
    assert "parts of a step are not timed" in verdicts[0].summary
