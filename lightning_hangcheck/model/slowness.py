"""Ranks whose steps take far longer than they ever did for long: facts, without a judgement."""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.step_times import StepTimes


class SlowRank(Struct, frozen=True, kw_only=True):
    """One rank.

    Attributes:
        before: The median of its steps while it had its own pace.
        now: The median of its steps since it has another.
        known_s: The longest that its steps took for as long as this, up to now; seconds.
        level_s: What all its steps since then took at least, but for a few; seconds.
        in_parts: Whether the parts were timed; else all of a step is in ``rest_s``.
        looks: How often its stack was looked at, at moments that follow no step.
        waited: In how many of these it waited for other ranks.
        place: Line of the user's own code at which it was most often in the others.
    """

    rank: int
    before: StepTimes
    now: StepTimes
    known_s: float
    level_s: float
    in_parts: bool = True
    looks: int = 0
    waited: int = 0
    place: Frame | None = None

    @property
    def ratio(self) -> float:
        """How many times as long a step takes as it ever did for so long."""
        return self.level_s / self.known_s if self.known_s > 0 else 1.0

    @property
    def grown(self) -> StepTimes:
        """What a step takes more, part by part."""
        return StepTimes(
            1,
            self.now.loader_s - self.before.loader_s,
            self.now.forward_s - self.before.forward_s,
            self.now.rest_s - self.before.rest_s,
        )


class Slowness(Struct, frozen=True, kw_only=True):
    """All of them at one moment.

    Attributes:
        for_s: How long all of them have been as slow, seconds.
        ranks: In ascending order.
    """

    for_s: float
    ranks: tuple[SlowRank, ...]
