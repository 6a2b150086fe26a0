"""The pace of all ranks of a node: when to ask whether it is lost, and when it is back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.slowness import Slowness
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.pace.rank_pace import RankPace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.model.beat import Beat

WAIT_FOR_OTHERS = 2
"""Stretches for which the first rank that is slow waits for others: ranks that wait for each other
in each step are slow together, but end their stretches in turn."""


class JobPace:
    """The paces of the ranks of one round.

    Args:
        slow_after_s: Seconds for which a rank must be slow; None to watch no pace.
    """

    def __init__(self, slow_after_s: float | None) -> None:
        self._slow_after_s = slow_after_s
        self._ranks: dict[int, RankPace] = {}
        self._slow: dict[int, RankPace] = {}
        self._told: tuple[int, ...] = ()
        self._told_since_ns = 0
        self._asked = 0

    def read(self, beats: Mapping[int, Beat], now_ns: int) -> None:
        """Take a reading of the pages.

        Args:
            beats: By rank, of those that are there; another one's pace is forgotten.
            now_ns: Monotonic nanoseconds.
        """
        if self._slow_after_s is None:
            return
        for rank in set(self._ranks) - set(beats):
            del self._ranks[rank]
        for rank, beat in beats.items():
            pace = self._ranks.get(rank)
            if pace is None:
                pace = self._ranks[rank] = RankPace(self._slow_after_s)
            pace.read(beat, now_ns)

    def interrupt(self) -> None:
        """Nobody watched, or the job was not run."""
        for pace in self._ranks.values():
            pace.interrupt()

    def slowness(self, now_ns: int) -> Slowness | None:
        """Return who is slow, as soon as it can be judged, and after each further stretch.

        Args:
            now_ns: Monotonic nanoseconds.

        Returns:
            None while nobody is, where it was told, and where nothing is new.
        """
        slow = {rank: pace for rank, pace in self._ranks.items() if pace.is_slow}
        asked = sum(pace.count for pace in self._ranks.values())
        if self._told or not slow or asked == self._asked:
            return None
        waited = max(pace.count - pace.slow_since for pace in slow.values())
        paced = [pace for pace in self._ranks.values() if pace.count]
        if len(slow) < len(paced) and waited < WAIT_FOR_OTHERS:
            return None
        self._asked, self._slow = asked, slow
        since_ns = min(pace.slow_from_ns for pace in slow.values())
        return Slowness(
            for_s=round((now_ns - since_ns) / NANOSECONDS, 3),
            ranks=tuple(pace.slowness(rank) for rank, pace in sorted(slow.items())),
        )

    def tell(self) -> None:
        """What `slowness` has just returned was told."""
        self._told = tuple(self._slow)
        self._told_since_ns = min(pace.slow_from_ns for pace in self._slow.values())
        for pace in self._slow.values():
            pace.tell()

    def recovered_s(self, now_ns: int) -> float | None:
        """Ask whether the pace is back that was told as lost; each time it is told once.

        Args:
            now_ns: Monotonic nanoseconds.

        Returns:
            For how many seconds it was lost; None while it is, and where nothing was told.
        """
        paces = (self._ranks.get(rank) for rank in self._told)
        blamed = [pace for pace in paces if pace is not None and pace.told]
        if not all(pace.is_back for pace in blamed):
            return None
        was_told, self._told = bool(self._told), ()
        for pace in blamed:
            pace.settle()
        if not (was_told and blamed):
            return None
        return (now_ns - self._told_since_ns) / NANOSECONDS
