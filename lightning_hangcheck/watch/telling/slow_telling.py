"""Tells once that ranks make steps far below their own pace, and once that it is back.

It is no alarm: nothing stands still, nothing is ended, and nobody is reminded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.reading.wording import duration
from lightning_hangcheck.text.moments import NANOSECONDS, utc_now
from lightning_hangcheck.watch.pace.job_pace import JobPace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.slowness import Slowness
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.observe.looking import Looker, Target
    from lightning_hangcheck.watch.pace.glances import Glances
    from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank
    from lightning_hangcheck.watch.telling.publishing import Publisher

LOOKING_S = 20.0
"""Longest time for the looks; on a machine that has time for them they take 8 s."""
TOO_LATE_S = 60.0
"""After which, because an alarm stood meanwhile, what was found is not told any more."""


class SlowTelling:
    """What is told of the pace of one round's ranks.

    Args:
        slow_after_s: Seconds for which they must be slow; 0 to tell nothing.
        publisher: Takes what is told.
        looker: Makes one that takes looks apart from those at silent ranks.
    """

    def __init__(
        self, slow_after_s: float, publisher: Publisher, looker: Callable[[], Looker]
    ) -> None:
        self._pace = JobPace(slow_after_s or None)
        self._publisher = publisher
        self._make_looker = looker
        self._looker: Looker | None = None
        self._found: Slowness | None = None
        self._found_ns = self._look_ns = 0
        self._glances: Glances | None = None
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

    def tell(
        self, now_ns: int, case: Callable[[], Case], targets: Callable[[], Sequence[Target]]
    ) -> None:
        """Tell what is new; to be asked only while no alarm stands.

        Args:
            now_ns: Monotonic nanoseconds.
            case: Makes one of these ranks.
            targets: Finds the processes to look at.
        """
        self._tell_back(now_ns, case)
        if self._found is None:
            self._find(now_ns, case)
        elif now_ns - self._found_ns > TOO_LATE_S * NANOSECONDS:
            self._found = None
        elif self._seen_enough(self._found, now_ns, targets):
            self._tell_slow(self._found, case)

    def close(self) -> None:
        """Give up the look under way."""
        if self._looker is not None:
            self._looker.close()

    def _find(self, now_ns: int, case: Callable[[], Case]) -> None:
        """Before anybody is looked at it must be worth telling."""
        slowness = self._pace.slowness(now_ns)
        if slowness is None or _judged(case(), slowness)[1].verdict != "slow":
            return
        self._pace.tell()
        self._found, self._found_ns = slowness, now_ns
        from lightning_hangcheck.watch.pace.glances import Glances  # reads what is known of frames

        self._glances = Glances()

    def _seen_enough(
        self, found: Slowness, now_ns: int, targets: Callable[[], Sequence[Target]]
    ) -> bool:
        """Look a few times at the slow ranks; with looks that take too long, do with fewer."""
        if self._looker is None:
            self._looker = self._make_looker()
        if self._glances is None or now_ns - self._found_ns > LOOKING_S * NANOSECONDS:
            return True
        look = self._looker.finished()
        if look is not None:
            self._glances.take(look)
            self._look_ns = now_ns + int(self._glances.pause_s * NANOSECONDS)
        if not self._looker.looking and now_ns >= self._look_ns:
            slow = {one.rank for one in found.ranks}
            self._looker.begin([t for t in targets() if t.role == "rank" and t.rank in slow])
        return self._glances.enough

    def _tell_slow(self, found: Slowness, case: Callable[[], Case]) -> None:
        seen = self._glances.added_to(found) if self._glances is not None else found
        self._found = None
        judged, verdict = _judged(case(), seen)
        if verdict.verdict == "slow":
            self._told = verdict
            self._publisher.publish(judged, verdict, "line")

    def _tell_back(self, now_ns: int, case: Callable[[], Case]) -> None:
        """Where something graver was told since, that was over in its own way."""
        slow_s = self._pace.recovered_s(now_ns)
        if slow_s is None:
            return
        told, self._told, self._found = self._told, None, None
        if told is not None and self._publisher.newest is told:
            self._publisher.publish(case(), pace_is_back(told, slow_s, utc_now()), "line")


def _judged(seen: Case, slowness: Slowness) -> tuple[Case, Verdict]:
    """Judge by the pace alone: an older look at a rank says nothing of it now."""
    from lightning_hangcheck.diagnosis import judge  # 20 MB: only once it is needed

    unlooked = tuple(replace(view, processes=(), flight=None) for view in seen.ranks)
    case = replace(seen, ranks=unlooked, slowness=slowness)
    return case, judge(case)


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
