"""What one rank has learnt of its own pace, and whether it has lost it.

The measure is the *sustained* step: what all steps of a window took at least, but for one stretch
in eight. However long a few steps are (an evaluation, a save, a burst on the storage), they do not
sustain. A rank is slow when its sustained step is several times the longest that it ever had: what
it did before for as long is its own pace, and so is what grew little by little.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from lightning_hangcheck.model.slowness import SlowRank
from lightning_hangcheck.model.step_times import StepTimes
from lightning_hangcheck.watch.pace.stretches import Stretch, Stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat

WINDOW = 8
"""Stretches over which a step must be sustained; with those of three steps, 24 steps."""
EXCEPTIONS = 1
"""Of them that may be faster."""
LEARNT = 16
"""Windows that must have been seen, and be over, before anything is unusual: with the first and the
present one the rank has run for four times the window by then."""
KEPT = 64
"""Stretches of which the usual step is the median."""
SLOW = 3.0
"""Times the longest sustained step: further apart than the kinds of batches of a usual loop."""
BACK = 2.0
"""Times that step: at half of the last stretches below, the pace is back."""
TIMES_NEWS = 2
"""A pace that was told so often, and passed, is one of the rank's own."""


class RankPace:
    """The pace of one rank.

    Args:
        slow_after_s: Seconds of a window.
    """

    def __init__(self, slow_after_s: float) -> None:
        self._stretches = Stretches(slow_after_s / WINDOW)
        self._loops = 0
        self._told_levels: list[float] = []
        self._begin_loop()

    def _begin_loop(self) -> None:
        self._recent: deque[Stretch] = deque(maxlen=WINDOW)
        self._usual: deque[StepTimes] = deque(maxlen=KEPT)
        self._unlearnt: deque[float] = deque()
        self._longest_s = 0.0
        self._learnt = 0
        self._told = False
        self.count = self.slow_since = 0
        """Stretches so far, and that one of them from which on it is slow; 0 while it is not."""

    def read(self, beat: Beat, now_ns: int) -> None:
        """Take a reading of the page."""
        stretch = self._stretches.read(beat, now_ns)
        if self._loops != self._stretches.loops:
            self._loops = self._stretches.loops
            self._begin_loop()
        if stretch is not None and stretch.step.seconds > 0:
            self._take(stretch)

    def interrupt(self) -> None:
        """Nobody watched, or the job was not run: what is in the present window does not count."""
        self._stretches.interrupt()
        self._recent.clear()
        self._unlearnt.clear()
        self.slow_since = 0

    def tell(self) -> None:
        """It was told that the rank is slow: it learns nothing until its pace is back."""
        self._told_levels.append(self._level_s)
        self._told = True

    def settle(self) -> None:
        """The job has its pace again."""
        self._told = False
        self.interrupt()

    @property
    def told(self) -> bool:
        """Whether it was told as slow, in the loop that it is in."""
        return self._told

    @property
    def is_slow(self) -> bool:
        """Whether it sustains steps several times as long as ever."""
        return self.slow_since > 0

    @property
    def is_back(self) -> bool:
        """Whether most of its last stretches come near to its own pace."""
        last = list(self._recent)[-WINDOW // 2 :]
        short = [one for one in last if one.step.seconds < BACK * self._known_s]
        return len(last) == WINDOW // 2 and len(short) >= len(last) - EXCEPTIONS

    @property
    def slow_from_ns(self) -> int:
        """When the window began, monotonic nanoseconds."""
        return self._recent[0].began_ns if self._recent else 0

    def slowness(self, rank: int) -> SlowRank:
        """Return the facts; only of one that `is_slow`."""
        return SlowRank(
            rank=rank,
            before=_median(list(self._usual)),
            now=_median([one.step for one in self._recent]),
            known_s=round(self._known_s, 6),
            level_s=round(self._level_s, 6),
            in_parts=self._stretches.in_parts,
        )

    def _take(self, stretch: Stretch) -> None:
        if len(self._recent) == WINDOW and not self._told:
            self._usual.append(self._recent[0].step)
        self._recent.append(stretch)
        self.count += 1
        if len(self._recent) < WINDOW or self._told:
            return
        level_s = self._level_s
        ready = self._learnt >= LEARNT and level_s >= SLOW * self._known_s
        self.slow_since = (self.slow_since or self.count) if ready else 0
        self._unlearnt.append(level_s)
        if len(self._unlearnt) > WINDOW:
            self._longest_s = max(self._longest_s, self._unlearnt.popleft())
            self._learnt += 1

    @property
    def _level_s(self) -> float:
        """The sustained step of the present window, seconds."""
        return sorted(one.step.seconds for one in self._recent)[EXCEPTIONS]

    @property
    def _known_s(self) -> float:
        told = sorted(self._told_levels, reverse=True)
        again = told[TIMES_NEWS - 1] if len(told) >= TIMES_NEWS else 0.0
        return max(self._longest_s, again)


def _median(steps: Sequence[StepTimes]) -> StepTimes:
    """Return the median of each part, not of the whole."""
    if not steps:
        return StepTimes()
    loader, forward, rest = zip(*(one.parts for one in steps), strict=True)
    return StepTimes(1, *(round(median(one), 6) for one in (loader, forward, rest)))
