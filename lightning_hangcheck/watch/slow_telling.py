"""Tells once that ranks make steps far below their own pace, and once that it is back.

It is no alarm: nothing stands still, nothing is ended, and nobody is reminded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.reading.wording import duration
from lightning_hangcheck.text.moments import utc_now
from lightning_hangcheck.watch.pace.job_pace import JobPace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.watch.publishing import Publisher
    from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank


class SlowTelling:
    """What is told of the pace of one round's ranks.

    Args:
        slow_after_s: Seconds for which they must be slow; 0 to tell nothing.
        publisher: Takes what is told.
    """

    def __init__(self, slow_after_s: float, publisher: Publisher) -> None:
        self._pace = JobPace(slow_after_s or None)
        self._publisher = publisher
        self._told: Verdict | None = None

    def read(self, ranks: Iterable[WatchedRank], now_ns: int, *, lapsed: bool) -> None:
        """Take a reading.

        Args:
            ranks: That are there, their pages just read.
            now_ns: Monotonic nanoseconds.
            lapsed: Nobody watched since the last reading, or the job was not allowed to run.
        """
        if lapsed:
            self._pace.interrupt()
        beats = {rank.found.rank: rank.beat for rank in ranks if rank.beat is not None}
        self._pace.read(beats, now_ns)

    def tell(self, now_ns: int, case: Callable[[], Case]) -> None:
        """Tell what is new; to be asked only while no alarm stands.

        Args:
            now_ns: Monotonic nanoseconds.
            case: Makes one of these ranks.
        """
        self._tell_back(now_ns, case)
        slowness = self._pace.slowness(now_ns)
        if slowness is None:
            return
        from lightning_hangcheck.diagnosis import judge  # 20 MB: only once it is needed

        seen = case()
        unlooked = tuple(replace(view, processes=(), flight=None) for view in seen.ranks)
        judged = replace(seen, ranks=unlooked, slowness=slowness)
        verdict = judge(judged)
        if verdict.verdict == "slow":
            self._pace.tell()
            self._told = verdict
            self._publisher.publish(judged, verdict, "line")

    def _tell_back(self, now_ns: int, case: Callable[[], Case]) -> None:
        """Where something graver was told since, that was over in its own way."""
        slow_s = self._pace.recovered_s(now_ns)
        told, self._told = self._told, self._told if slow_s is None else None
        if slow_s is None or told is None or self._publisher.newest is not told:
            return
        self._publisher.publish(case(), pace_is_back(told, slow_s, utc_now()), "line")


def pace_is_back(told: Verdict, slow_s: float, detected_at: str) -> Verdict:
    """Return the verdict that ends one of `slow`.

    Args:
        told: That one.
        slow_s: For how many seconds steps took longer.
        detected_at: ISO 8601 UTC.
    """
    return replace(
        told,
        verdict="recovered",
        detected_at=detected_at,
        remedies=(),
        summary=f"steps have their own pace again, after {duration(slow_s)}; "
        f"what was seen: {told.summary}",
    )
