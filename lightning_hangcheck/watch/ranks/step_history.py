"""How a rank's step times went over the run, in few marks however long it is. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.step_times import StepTimes

MOST_MARKS = 16
"""Stretches of a run that can be told apart; at least half as many are kept."""


class StepHistory:
    """Readings of one rank's sums, the same number of timed steps apart.

    When there are too many, every second one is dropped, and later ones come half as often.
    """

    def __init__(self) -> None:
        self._marks: list[StepTimes] = []
        self._stride = 1

    def read(self, beat: Beat) -> None:
        """Take a reading of the page."""
        sums = beat.step_times
        if sums is None:
            return
        if self._marks and sums.steps < self._marks[-1].steps + self._stride:
            return
        self._marks.append(sums)
        if len(self._marks) > MOST_MARKS:
            self._marks = self._marks[::2]
            self._stride *= 2

    @property
    def marks(self) -> tuple[StepTimes, ...]:
        """Sums at moments of the run, oldest first."""
        return tuple(self._marks)
