"""Pauses of a job whose data, disk or network is uneven: mostly short, now and then long."""

from __future__ import annotations

import random

SHORTEST_S, LONGEST_S = 0.05, 20.0
"""A hiccup of the disk, and two thirds of the patience for a rank that stands idle."""
TAIL = 0.8
"""Exponent of the Pareto distribution: one pause in 19 is above 2 s, one in 70 above 10 s."""
SHARE = 0.2
"""Of the steps, so that there is a pace between the pauses."""


class Pauses:
    """How long a rank pauses before each of its steps: the same in every run.

    Args:
        rank: Seeds the numbers, so that ranks pause at different steps.
    """

    def __init__(self, rank: int) -> None:
        self._random = random.Random(rank)

    def next_s(self) -> float:
        """Return how long to pause before the next step, seconds; mostly not at all."""
        if self._random.random() >= SHARE:
            return 0.0
        return min(LONGEST_S, SHORTEST_S * self._random.paretovariate(TAIL))
