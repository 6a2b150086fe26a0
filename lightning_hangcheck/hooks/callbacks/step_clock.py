"""Times the parts of training steps in the rank itself: clock readings and sums, nothing else.

Lightning's way to a hook costs more than what a hook does, so steps that are over within
milliseconds are timed now and then: their inner hooks are there only while one is.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.recorder.page.writer import PageWriter

BETWEEN_NS = 50_000_000
"""Time between the beginnings of two steps that are timed: 20 steps a second take 0.3 ms of it."""
FIRST_STEPS = 3
"""They compile, connect and fill caches; those after an interruption fetch a first batch, too."""


class StepClock:
    """The clock of one training loop."""

    def __init__(self) -> None:
        self._left_out = FIRST_STEPS
        self._next_ns = 0
        self._began_ns = self._forward_ns = self._ended_ns = 0

    def batch_comes(self, page: PageWriter) -> bool:
        """A batch has come: the step before it is over, with its wait for this one.

        Args:
            page: Takes the step's times.

        Returns:
            Whether the step that begins is timed: then its other moments are to be told, too.
        """
        now_ns = monotonic_ns()
        if self._ended_ns:
            computed_ns = self._forward_ns or self._began_ns
            page.time_step(
                now_ns - self._ended_ns,
                computed_ns - self._began_ns,
                self._ended_ns - computed_ns,
            )
        self._forward_ns = self._ended_ns = 0
        if self._left_out:
            self._left_out -= 1
        elif now_ns >= self._next_ns:
            self._began_ns, self._next_ns = now_ns, now_ns + BETWEEN_NS
            return True
        self._began_ns = 0
        return False

    def backward_comes(self, *_: object) -> None:
        """The forward pass is over; of several backward passes in a step the first counts."""
        if self._began_ns and not self._forward_ns:
            self._forward_ns = monotonic_ns()

    def batch_is_done(self, *_: object) -> None:
        """The optimizer has stepped, or gradients were added up; next comes a batch."""
        if self._began_ns:
            self._ended_ns = monotonic_ns()

    def interrupt(self) -> None:
        """Something else is done between two steps: neither of them counts."""
        self._began_ns = self._forward_ns = self._ended_ns = 0
        self._left_out = max(self._left_out, 1)
