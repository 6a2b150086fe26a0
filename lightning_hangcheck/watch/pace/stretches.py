"""A rank's steps in stretches: each so many seconds and steps long, told by its mean step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.model.step_times import StepTimes
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.beat import Beat

LEAST_STEPS = 3
"""Of one stretch: a single long step, such as one that saves, is not all of it."""
BETWEEN_LOOPS = ("startup", "model_load", "trainer_init", "teardown")
"""Where a rank has no training loop: the next one may be of another model."""


class Stretch(NamedTuple):
    """One of them.

    Attributes:
        began_ns: Monotonic nanoseconds.
        step: Its mean step.
    """

    began_ns: int
    step: StepTimes


class Stretches:
    """Cuts what one rank's page tells into stretches.

    Args:
        least_s: Least seconds of one.

    Attributes:
        in_parts: Whether the rank times the parts of its steps.
        loops: How many training loops it has begun: one that trains another model has another pace.
    """

    def __init__(self, least_s: float) -> None:
        self._least_ns = int(least_s * NANOSECONDS)
        self._since: StepTimes | None = None
        self._since_ns = 0
        self._between_loops = False
        self.in_parts = False
        self.loops = 0

    def read(self, beat: Beat, now_ns: int) -> Stretch | None:
        """Take a reading of the page, and return the stretch that ends with it, if any does."""
        if beat.phase in BETWEEN_LOOPS:
            self._between_loops, self._since = True, None
            return None
        sums = _sums(beat)
        if sums is None:
            return None
        in_parts = beat.step_times is not None
        other = self._since is not None and sums.steps < self._since.steps
        if self._between_loops or other or in_parts is not self.in_parts:
            self.loops += 1
            self._between_loops, self._since, self.in_parts = False, None, in_parts
        if self._since is None:
            self._since, self._since_ns = sums, now_ns
            return None
        made = sums.since(self._since)
        if made.steps < LEAST_STEPS or now_ns - self._since_ns < self._least_ns:
            return None
        began_ns = self._since_ns
        self._since, self._since_ns = sums, now_ns
        return Stretch(began_ns, made.a_step())

    def interrupt(self) -> None:
        """What is in the present stretch does not count."""
        self._since = None


def _sums(beat: Beat) -> StepTimes | None:
    """Return the sums that the rank keeps, or those that its last step's number and time make."""
    if beat.step_times is not None:
        return beat.step_times
    if beat.step is None or beat.phase not in ("training_step", "dataloading"):
        return None
    return StepTimes(beat.step, rest_s=beat.last_beat_ns / NANOSECONDS)
