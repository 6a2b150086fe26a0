"""Whether a rank that advances keeps its own pace. All but `SlowTelling` is pure.

The measure is the sustained step: the time that every step of a window took at least, except in one
stretch of eight. A few long steps (an evaluation, a save, a burst on the storage) do not raise it.
A rank is slow if its sustained step is several times the longest that it ever had. What the rank
did for as long before is its own pace, and so is a gradual slowdown.
"""

from __future__ import annotations

from collections import Counter, deque
from statistics import median
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.frames import FOR_RANKS, find_wait, users_place
from lightning_hangcheck.judge.wording import duration
from lightning_hangcheck.look.sample import Look, Looker, Target
from lightning_hangcheck.model.beat import Beat, Slowness, SlowRank, StepTimes
from lightning_hangcheck.text.shown import NANOSECONDS, utc_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.observe.watched_rank import WatchedRank
    from lightning_hangcheck.settings import Settings
    from lightning_hangcheck.watch.writer import Writer

WINDOW, EXCEPTIONS = 8, 1
"""Stretches over which a step must be sustained, and how many of them may be faster; with stretches
of three steps, 24 steps."""
LEARNT = 16
"""Windows that must be over before any pace is unusual. With the first and the present window, the
rank has run for four times a window by then."""
KEPT = 64
"""The usual step is the median of this many stretches."""
SLOW, BACK = 3.0, 2.0
"""Multiples of the longest sustained step. ``SLOW`` exceeds the spread between kinds of batches in
a usual loop. The pace is back once half a window's stretches, all but one, are below ``BACK``."""
TIMES_NEWS = 2
"""A slow pace that was reported this often is one of the rank's own."""
WAIT_FOR_OTHERS = 2
"""Stretches for which the first slow rank waits for others: ranks that wait for each other in each
step are slow together, but end their stretches in turn."""
LEAST_STEPS = 3
"""Steps of a stretch at least: a single long step, such as a save, does not fill it."""
BETWEEN_LOOPS = ("startup", "model_load", "trainer_init", "teardown")
"""Phases without a training loop: the next loop may train another model."""


class JobPace:
    """The paces of the ranks of one round."""

    def __init__(self, slow_after_s: float | None) -> None:
        self._slow_after_s = slow_after_s
        self._ranks: dict[int, _RankPace] = {}
        self._slow: dict[int, _RankPace] = {}
        self._reported: tuple[int, ...] = ()
        self._reported_since_ns = 0
        self._asked = 0

    def read(self, beats: Mapping[int, Beat], now_ns: int) -> None:
        """Take a reading of the pages."""
        if self._slow_after_s is None:
            return
        known, slow_after_s = self._ranks, self._slow_after_s
        self._ranks = {rank: known.get(rank) or _RankPace(slow_after_s) for rank in beats}
        for rank, beat in beats.items():
            self._ranks[rank].read(beat, now_ns)

    def interrupt(self) -> None:
        """Discard the present window: nobody watched, or the job did not run."""
        for pace in self._ranks.values():
            pace.interrupt()

    def slowness(self, now_ns: int) -> Slowness | None:
        """Return the slow ranks once that can be judged and after each further stretch, or None."""
        slow = {rank: pace for rank, pace in self._ranks.items() if pace.slow_since}
        asked = sum(pace.count for pace in self._ranks.values())
        if self._reported or not slow or asked == self._asked:
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
        """Note that the result of `slowness` was reported."""
        self._reported = tuple(self._slow)
        self._reported_since_ns = min(pace.slow_from_ns for pace in self._slow.values())
        for pace in self._slow.values():
            pace.tell()

    def recovered_s(self, now_ns: int) -> float | None:
        """Return once for how many seconds the reported pace was lost, after it is back."""
        paces = (self._ranks.get(rank) for rank in self._reported)
        blamed = [pace for pace in paces if pace is not None and pace.reported]
        if not all(pace.is_back for pace in blamed):
            return None
        self._reported = ()
        for pace in blamed:
            pace.reported = False
            pace.interrupt()
        return (now_ns - self._reported_since_ns) / NANOSECONDS if blamed else None


class _RankPace:
    """The pace of one rank.

    A ``reported`` rank learns nothing until its pace is back. ``slow_since``: the stretch, of
    ``count``, since which its sustained step is `SLOW` times the longest; 0 if it is not.
    """

    def __init__(self, slow_after_s: float) -> None:
        self._least_ns = int(slow_after_s / WINDOW * NANOSECONDS)
        self._since: StepTimes | None = None
        self._since_ns = 0
        self._between_loops = self._in_parts = False
        self._reported_levels: list[float] = []
        self._begin_loop()

    def _begin_loop(self) -> None:
        self._recent: deque[tuple[int, StepTimes]] = deque(maxlen=WINDOW)
        self._usual: deque[StepTimes] = deque(maxlen=KEPT)
        self._unlearnt: deque[float] = deque()
        self._longest_s = 0.0
        self._learnt = 0
        self.reported = False
        self.count = self.slow_since = 0

    def read(self, beat: Beat, now_ns: int) -> None:
        """Take a reading of the page; a stretch ends once it has enough steps and time."""
        if beat.phase in BETWEEN_LOOPS:
            self._between_loops, self._since = True, None
            return
        # the sums that the rank keeps, or sums made from its last step's number and time
        sums, in_parts = beat.step_times, beat.step_times is not None
        if sums is None:
            if beat.step is None or beat.phase not in ("training_step", "dataloading"):
                return
            sums = StepTimes(beat.step, rest_s=beat.last_beat_ns / NANOSECONDS)
        other = self._since is not None and sums.steps < self._since.steps
        if self._between_loops or other or in_parts is not self._in_parts:
            self._between_loops, self._since, self._in_parts = False, None, in_parts
            self._begin_loop()
        if self._since is None:
            self._since, self._since_ns = sums, now_ns
            return
        made = sums.since(self._since)
        if made.steps < LEAST_STEPS or now_ns - self._since_ns < self._least_ns:
            return
        began_ns, step = self._since_ns, made.a_step()
        self._since, self._since_ns = sums, now_ns
        if step.seconds <= 0:
            return
        if len(self._recent) == WINDOW and not self.reported:
            self._usual.append(self._recent[0][1])
        self._recent.append((began_ns, step))
        self.count += 1
        if len(self._recent) < WINDOW or self.reported:
            return
        level_s = self._level_s
        ready = self._learnt >= LEARNT and level_s >= SLOW * self._known_s
        self.slow_since = (self.slow_since or self.count) if ready else 0
        self._unlearnt.append(level_s)
        if len(self._unlearnt) > WINDOW:
            self._longest_s = max(self._longest_s, self._unlearnt.popleft())
            self._learnt += 1

    def interrupt(self) -> None:
        self._since = None
        self._recent.clear()
        self._unlearnt.clear()
        self.slow_since = 0

    def tell(self) -> None:
        self._reported_levels.append(self._level_s)
        self.reported = True

    @property
    def is_back(self) -> bool:
        """Whether most of the last stretches are near the rank's own pace."""
        last = list(self._recent)[-WINDOW // 2 :]
        short = [step for _, step in last if step.seconds < BACK * self._known_s]
        return len(last) == WINDOW // 2 and len(short) >= len(last) - EXCEPTIONS

    @property
    def slow_from_ns(self) -> int:
        return self._recent[0][0]

    def slowness(self, rank: int) -> SlowRank:
        def usual(steps: Iterable[StepTimes]) -> StepTimes:
            """The median of each part, not of the whole."""
            parts = zip(*(times.parts for times in steps), strict=True)
            medians = [round(median(part), 6) for part in parts]
            return StepTimes(1, *medians) if medians else StepTimes()

        return SlowRank(
            rank=rank,
            before=usual(self._usual),
            now=usual(step for _, step in self._recent),
            known_s=round(self._known_s, 6),
            level_s=round(self._level_s, 6),
            in_parts=self._in_parts,
        )

    @property
    def _level_s(self) -> float:
        """The sustained step of the present window, seconds."""
        return sorted(step.seconds for _, step in self._recent)[EXCEPTIONS]

    @property
    def _known_s(self) -> float:
        levels = sorted(self._reported_levels, reverse=True)
        again = levels[TIMES_NEWS - 1] if len(levels) >= TIMES_NEWS else 0.0
        return max(self._longest_s, again)


GLANCES = 10
SHORTEST_S, LONGEST_S = 0.4, 1.0
GOLDEN = 0.618
"""Ratio that spreads the pauses between looks: they never keep time with the steps."""
ASLEEP = "S"


class Glances:
    """Who waits and who works while ranks are slow, from looks that do not keep time with steps.

    Ranks that wait for a slow rank spend most of each step in a collective; the slow rank works.
    """

    def __init__(self) -> None:
        self.count = 0
        self._looks: Counter[int] = Counter()
        self._works: dict[int, Counter[Frame | None]] = {}

    @property
    def enough(self) -> bool:
        """Whether `GLANCES` looks were taken."""
        return self.count >= GLANCES

    @property
    def pause_s(self) -> float:
        """Seconds until the next look."""
        return SHORTEST_S + (LONGEST_S - SHORTEST_S) * (self.count * GOLDEN % 1)

    def take(self, look: Look) -> None:
        """Add a look."""
        self.count += 1
        for target, sample in look.samples:
            threads = sample.stack.threads if sample.stack is not None else ()
            frames = threads[0].frames if threads else ()
            if target.role != "rank" or not frames:
                continue
            self._looks[target.rank] += 1
            # a main thread works unless it waits for ranks; backward waits only while asleep
            wait, kernel = find_wait(frames), sample.kernel
            state = kernel.threads[0].state if kernel is not None and kernel.threads else ""
            for_ranks = wait is not None and wait.kind in FOR_RANKS
            if not for_ranks or wait is None or (wait.kind == "backward" and state != ASLEEP):
                self._works.setdefault(target.rank, Counter())[users_place(frames)] += 1

    def added_to(self, slowness: Slowness) -> Slowness:
        """Return the facts with what the looks saw of these ranks."""
        ranks = []
        for rank in slowness.ranks:
            works, looks = self._works.get(rank.rank, Counter()), self._looks[rank.rank]
            places = [place for place, _ in works.most_common() if place is not None]
            waited, place = looks - works.total(), next(iter(places), None)
            ranks.append(replace(rank, looks=looks, waited=waited, place=place))
        return replace(slowness, ranks=tuple(ranks))


# Reports: once that the pace is lost, once that it is back. This is no alarm: nothing is stuck, no
# job is ended, and no reminder comes.

LOOKING_S = 20.0
"""Longest time for the looks; on a machine that is not overloaded they take 8 s."""
TOO_LATE_S = 60.0
"""Age from which a finding is not reported any more; an alarm may have delayed it."""


class SlowTelling:
    """Reports on the pace of one round's ranks."""

    def __init__(self, settings: Settings, servers: Path, writer: Writer) -> None:
        self._pace = JobPace(settings.slow_after or None)
        self._writer = writer
        self._looker = Looker(settings.probe_timeout, servers)
        self._found: Slowness | None = None
        self._found_ns = self._look_ns = 0
        self._glances = Glances()
        self._reported: Verdict | None = None

    def read(self, alive: Sequence[WatchedRank], now_ns: int, *, lapsed: bool) -> None:
        """Take a reading of the ranks' pages."""
        if lapsed:
            self._pace.interrupt()
        beats = {rank.found.rank: rank.beat for rank in alive if rank.beat is not None}
        self._pace.read(beats, now_ns)

    def tell(self, alive: Sequence[WatchedRank], now_ns: int, case: Callable[[], Case]) -> None:
        """Report what is new; call this only while there is no alarm."""
        slow_s = self._pace.recovered_s(now_ns)
        if slow_s is not None:
            telling, self._reported, self._found = self._reported, None, None
            # a graver verdict that was published since has had an end of its own
            if telling is not None and self._writer.newest is telling:
                back = replace(
                    telling,
                    verdict="recovered",
                    detected_at=utc_now(),
                    remedies=(),
                    summary=f"steps have their own pace again, after {duration(slow_s)}; "
                    f"what was seen: {telling.summary}",
                )
                self._writer.publish(case(), back, "line")
        found = self._found
        if found is None:
            found = self._pace.slowness(now_ns)
            # look at ranks only if the slowness is worth a report
            if found is not None and _judged(case(), found)[1].verdict == "slow":
                self._pace.tell()
                self._found, self._found_ns, self._glances = found, now_ns, Glances()
        elif now_ns - self._found_ns > TOO_LATE_S * NANOSECONDS:
            self._found = None
        elif self._seen_enough(found, now_ns, alive):
            self._found = None
            judged, verdict = _judged(case(), self._glances.added_to(found))
            if verdict.verdict == "slow":
                self._reported = verdict
                self._writer.publish(judged, verdict, "line")

    def close(self) -> None:
        """Give up the look under way."""
        self._looker.close()

    def _seen_enough(self, found: Slowness, now_ns: int, alive: Sequence[WatchedRank]) -> bool:
        if now_ns - self._found_ns > LOOKING_S * NANOSECONDS:
            return True
        look = self._looker.finished()
        if look is not None:
            self._glances.take(look)
            self._look_ns = now_ns + int(self._glances.pause_s * NANOSECONDS)
        if not self._looker.looking and now_ns >= self._look_ns:
            slow = {rank.rank for rank in found.ranks}
            seen = [rank.found for rank in alive if rank.found.rank in slow]
            targets = [
                Target(rank=found_rank.rank, pid=found_rank.pid, role="rank") for found_rank in seen
            ]
            self._looker.begin(lambda: (targets, ()))
        return self._glances.enough


def _judged(seen: Case, slowness: Slowness) -> tuple[Case, Verdict]:
    """Judge by the pace alone: older looks at a rank say nothing about it now."""
    unlooked = tuple(replace(view, processes=(), flight=None) for view in seen.ranks)
    case = replace(seen, ranks=unlooked, slowness=slowness)
    return case, judge(case)
