"""Tells once that ranks make steps far below their own pace, and once that it is back.

It is no alarm: nothing stands still, nothing is ended, and nobody is reminded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.wording import duration
from lightning_hangcheck.observe.looking import Looker, Target
from lightning_hangcheck.text.shown import NANOSECONDS, utc_now
from lightning_hangcheck.watch.pace import Glances, JobPace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lightning_hangcheck.model.beat import Slowness
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.observe.watched_rank import WatchedRank
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.writer import Writer

LOOKING_S = 20.0
"""Longest time for the looks; on a machine that has time for them they take 8 s."""
TOO_LATE_S = 60.0
"""After which, because an alarm stood meanwhile, what was found is not told any more."""


class SlowTelling:
    """What is told of the pace of one round's ranks."""

    def __init__(self, settings: Settings, servers: Path, writer: Writer) -> None:
        self._pace = JobPace(settings.slow_after or None)
        self._writer = writer
        self._limit_s, self._servers = settings.probe_timeout, servers
        self._looker: Looker | None = None
        self._unjudged: Slowness | None = None
        self._found: Slowness | None = None
        self._found_ns = self._look_ns = 0
        self._glances: Glances | None = None
        self._told: Verdict | None = None

    def read(self, alive: Sequence[WatchedRank], now_ns: int, *, lapsed: bool) -> None:
        """Take a reading."""
        if lapsed:
            self._pace.interrupt()
        beats = {rank.found.rank: rank.beat for rank in alive if rank.beat is not None}
        self._pace.read(beats, now_ns)

    def tell(
        self,
        alive: Sequence[WatchedRank],
        now_ns: int,
        case: Callable[[], Case],
        ready: Callable[[], bool],
    ) -> None:
        """Tell what is new; to be asked only while no alarm stands."""
        self._tell_back(now_ns, case)
        if self._found is None:
            self._find(now_ns, case, ready)
        elif now_ns - self._found_ns > TOO_LATE_S * NANOSECONDS:
            self._found = None
        elif self._seen_enough(self._found, now_ns, alive):
            self._tell_slow(self._found, case)

    def close(self) -> None:
        """Give up the look under way."""
        if self._looker is not None:
            self._looker.close()

    def _find(self, now_ns: int, case: Callable[[], Case], ready: Callable[[], bool]) -> None:
        """Before anybody is looked at it must be worth telling."""
        slowness = self._unjudged or self._pace.slowness(now_ns)
        self._unjudged = None if slowness is None or ready() else slowness
        if slowness is None or self._unjudged is not None:
            return
        if _judged(case(), slowness)[1].verdict != "slow":
            return
        self._pace.tell()
        self._found, self._found_ns = slowness, now_ns
        self._glances = Glances()

    def _seen_enough(self, found: Slowness, now_ns: int, alive: Sequence[WatchedRank]) -> bool:
        """Look a few times at the slow ranks; with looks that take too long, do with fewer."""
        if self._looker is None:
            self._looker = Looker(self._limit_s, self._servers)
        if self._glances is None or now_ns - self._found_ns > LOOKING_S * NANOSECONDS:
            return True
        look = self._looker.finished()
        if look is not None:
            self._glances.take(look)
            self._look_ns = now_ns + int(self._glances.pause_s * NANOSECONDS)
        if not self._looker.looking and now_ns >= self._look_ns:
            slow = {one.rank for one in found.ranks}
            seen = [one.found for one in alive if one.found.rank in slow]
            self._looker.begin([Target(rank=one.rank, pid=one.pid, role="rank") for one in seen])
        return self._glances.enough

    def _tell_slow(self, found: Slowness, case: Callable[[], Case]) -> None:
        seen = self._glances.added_to(found) if self._glances is not None else found
        self._found = None
        judged, verdict = _judged(case(), seen)
        if verdict.verdict == "slow":
            self._told = verdict
            self._writer.publish(judged, verdict, "line")

    def _tell_back(self, now_ns: int, case: Callable[[], Case]) -> None:
        """Where something graver was told since, that was over in its own way."""
        slow_s = self._pace.recovered_s(now_ns)
        if slow_s is None:
            return
        told, self._told, self._found = self._told, None, None
        if told is None or self._writer.newest is not told:
            return
        back = replace(
            told,
            verdict="recovered",
            detected_at=utc_now(),
            remedies=(),
            summary=f"steps have their own pace again, after {duration(slow_s)}; "
            f"what was seen: {told.summary}",
        )
        self._writer.publish(case(), back, "line")


def _judged(seen: Case, slowness: Slowness) -> tuple[Case, Verdict]:
    """Judge by the pace alone: an older look at a rank says nothing of it now."""
    unlooked = tuple(replace(view, processes=(), flight=None) for view in seen.ranks)
    case = replace(seen, ranks=unlooked, slowness=slowness)
    return case, judge(case)
