"""When a rank made its steps, and how long one takes. Pure: time is what its page tells."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lightning_hangcheck.model.case import StepMark
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.beat import Beat

STEPS_KEPT = 101
"""A pace that changed shows after half of them."""
MARKS_KEPT = 16
"""Some 20 bytes each in the evidence of every rank."""


class StepPace:
    """The median of a rank's last steps; of its beats, where it shows no steps.

    Steps that went by between two readings of the page share the time between their newest signs.
    So a single first step that compiles, or one that saves, leaves the median as it is.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=STEPS_KEPT)
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS_KEPT)
        self._counts_steps = False
        self._count = 0
        self._at_ns = 0

    def read(self, beat: Beat) -> None:
        """Take a reading of the page; a count that goes back is another loop, measured afresh."""
        counts_steps = beat.step is not None
        count = beat.beats if beat.step is None else beat.step
        if counts_steps != self._counts_steps or count < self._count:
            self._seconds.clear()
            self._marks.clear()
            self._at_ns = 0
        made = count - self._count
        if self._at_ns and made > 0:
            seconds = (beat.last_beat_ns - self._at_ns) / NANOSECONDS
            self._seconds.extend([max(0.0, seconds) / made] * min(made, STEPS_KEPT))
        if made or not self._at_ns:
            self._at_ns = beat.last_beat_ns
            self._marks.append((count, self._at_ns))
        self._count, self._counts_steps = count, counts_steps

    def newest(self, now_ns: int) -> tuple[StepMark, ...]:
        """Return the last readings in which the count of steps was another, oldest first.

        Args:
            now_ns: Monotonic nanoseconds, from which on they are told.
        """
        marks = self._marks if self._counts_steps else ()
        return tuple(
            StepMark(step, round((now_ns - at_ns) / NANOSECONDS, 3)) for step, at_ns in marks
        )

    @property
    def median_s(self) -> float | None:
        """Seconds of a step; None before one was seen from its beginning to its end."""
        in_order = sorted(self._seconds)
        return in_order[len(in_order) // 2] if in_order else None
