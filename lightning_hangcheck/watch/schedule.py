"""When to look at a job again. Pure: time is a parameter, in monotonic nanoseconds.

A look costs each rank a few milliseconds, so none is taken while all is well; suspicion is cheap
and looks often; what turned out to be only slow is looked at less and less. Looks come when the
contract's table may have something to say: at 3 and 5 s of silence, and at 10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank

FIRST_LOOKS = 4
BETWEEN_FIRST_LOOKS_S = 1.0
WHILE_SUSPECT_S = 2.5
ALL_NAMED_S = 10.0
"""Silence at which whatever can be suspected is: up to it, the looks come as for a suspicion."""
LONGEST_S = 30.0
PAUSES_BEFORE_SURPRISE = 3.0
LONGEST_PATIENCE_S = 8.0


class Schedule:
    """Decides at each reading whether it is time to look."""

    def __init__(self, look_after_s: float) -> None:
        self._look_after_s = look_after_s
        self._looks = 0
        self._last_ns = 0
        self._silent_s = 0.0
        self._interval_s = BETWEEN_FIRST_LOOKS_S

    def due_for(self, alive: Sequence[WatchedRank], now_ns: int) -> bool:
        """Say whether to look now, by the rank that is silent for longest.

        Args:
            alive: Ranks that have a process.
            now_ns: Present time.
        """
        silent = max(alive, key=lambda rank: rank.progress.silent_ns(now_ns), default=None)
        if silent is None:
            return False
        pace = silent.progress.pace()
        return self.due(
            silent.progress.silent_ns(now_ns) / NANOSECONDS,
            pace.longest_pause_s if pace is not None and pace.known else 0.0,
            min(rank.progress.idle_ns(now_ns) for rank in alive) / NANOSECONDS,
            now_ns,
        )

    def due(self, silent_s: float, longest_pause_s: float, idle_s: float, now_ns: int) -> bool:
        """Say whether to look now.

        Args:
            silent_s: The longest silence of any rank.
            longest_pause_s: That rank's longest known pause in its present place, 0 if unknown.
            idle_s: How long the rank that is silent has been idle.
            now_ns: Present time.
        """
        self._silent_s = silent_s
        surprise = min(PAUSES_BEFORE_SURPRISE * longest_pause_s, LONGEST_PATIENCE_S)
        threshold = max(self._look_after_s, surprise)
        if silent_s < threshold:
            self.calm()
            return False
        since_look = (now_ns - self._last_ns) / NANOSECONDS if self._looks else float("inf")
        turned_idle = self._look_after_s <= idle_s < since_look
        if turned_idle:
            self._looks, self._interval_s = 0, BETWEEN_FIRST_LOOKS_S
        return turned_idle or since_look >= self._interval_s

    def looked(self, begun_ns: int, *, suspicious: bool) -> None:
        """Note when a look was begun, and what it led to."""
        self._looks += 1
        self._last_ns = begun_ns
        if self._looks < FIRST_LOOKS:
            self._interval_s = BETWEEN_FIRST_LOOKS_S
        elif suspicious or self._silent_s < ALL_NAMED_S:
            self._interval_s = WHILE_SUSPECT_S
        else:
            self._interval_s = min(2 * self._interval_s, LONGEST_S)

    def calm(self) -> None:
        """All ranks advance: the next silence starts afresh."""
        self._looks = 0
        self._interval_s = BETWEEN_FIRST_LOOKS_S
