"""How long the parts of a rank's training steps take, as the rank itself timed them."""

from __future__ import annotations

from msgspec import Struct

PARTS = ("loader", "forward", "backward, optimizer and waiting")
"""Names of the parts of a step, in the order of `StepTimes.parts`."""


class StepTimes(Struct, frozen=True, array_like=True):
    """Sums over training steps that were timed from one batch to the next.

    Steps between which something else was done (an evaluation, a save, the end of an epoch) are not
    among them, nor are a rank's first steps, which compile and connect.

    Attributes:
        steps: How many were timed: of steps that are over within milliseconds some, else all.
        loader_s: Waiting for the next batch, until it is on its device.
        forward_s: From then until backward begins; all of it the rank's own work.
        rest_s: Backward, optimizer and callbacks; in a distributed job also waiting for the others.
    """

    steps: int = 0
    loader_s: float = 0.0
    forward_s: float = 0.0
    rest_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.loader_s + self.forward_s + self.rest_s

    @property
    def own_s(self) -> float:
        """What no other rank has a part in."""
        return self.loader_s + self.forward_s

    @property
    def parts(self) -> tuple[float, float, float]:
        """Its seconds, part by part."""
        return self.loader_s, self.forward_s, self.rest_s

    def since(self, earlier: StepTimes) -> StepTimes:
        """Return what came after an earlier reading of the same sums."""
        return StepTimes(
            self.steps - earlier.steps,
            self.loader_s - earlier.loader_s,
            self.forward_s - earlier.forward_s,
            self.rest_s - earlier.rest_s,
        )

    def a_step(self) -> StepTimes:
        """Return the mean of one step; all zero where none was timed."""
        if not self.steps:
            return self
        return StepTimes(
            1, self.loader_s / self.steps, self.forward_s / self.steps, self.rest_s / self.steps
        )
