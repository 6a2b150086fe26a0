"""Tracks since when a rank shows no progress, and its own pace.

Pure: time is a parameter, in monotonic nanoseconds.

Progress is what the rank reports (a beat on its page, a new number of its collectives), and a look
that saw it move through its code or move bytes. Use of the processor is no progress: a rank that
spins would advance for ever. It only shows since when a rank is idle: a rank that computed silently
for minutes and has waited for 3 s is idle for 3 s.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.model.case import Pace, StepMark
from lightning_hangcheck.model.words import UNKNOWN_PLACE
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.beat import Beat, StepTimes
    from lightning_hangcheck.model.slugs import Phase

LOOP_PHASES = ("dataloading", "training_step", "backward", "optimizer_step")
"""A training loop passes all of these in each step, mostly between two readings of the page: a step
teaches the pace of each phase."""
Place = tuple["Phase | None", str]
"""A phase, and the innermost open section without its numbers: ``batch 7`` equals ``batch 8``."""
NUMBER = re.compile(r"\d+")
MOST_PLACES = 64
"""Places whose pace is kept; the one left longest ago is dropped and has no known pace then."""
WINDOW_S = 1.0
"""Time over which processor use is judged: the kernel counts it in ticks of 10 ms."""
MAIN_SHARE = 0.05
ALL_SHARE = 0.2
"""Shares of one core above which a rank uses the processor: main thread, or all threads together.
Helpers that wake now and then (pulse, metrics, a loader that checks its workers) use less."""


class ProcessorTime(NamedTuple):
    """Processor time of a process so far, in seconds: of its main thread, and of all threads."""

    main_s: float
    all_s: float


class Progress:
    """One rank's signs of progress.

    ``beats``: the rank beats by itself. A rank that only passes checkpoints promises no more beats.
    """

    def __init__(self, now_ns: int) -> None:
        self.beats = False
        self.last_progress_ns = self.last_reported_ns = now_ns
        self._active_ns = self._new_ns = now_ns
        self._elsewhere: set[str] = set()
        self._processor: tuple[ProcessorTime, int] | None = None
        self._newest_processor = ProcessorTime(0.0, 0.0)
        self._main_rose_ns = self._all_rose_ns = now_ns
        self._beat_ns = self._moved_ns = self._longest_silence_ns = 0
        self._place: Place = (None, "")
        self._pauses: dict[Place, _Pauses] = {}
        self._rare: dict[str, _Pauses] = {}
        self._loop = _Pauses()
        self._step: int | None = None

    def read_beat(self, beat: Beat, now_ns: int) -> None:
        """Take a reading of the page, and learn the pace of the place where the rank was."""
        if beat.last_beat_ns <= 0:
            return
        if beat.last_beat_ns > self._beat_ns:
            for place in self._elsewhere - {UNKNOWN_PLACE}:
                self._rare.setdefault(place, _Pauses(0)).learn(self._longest_silence_ns)
            if self.beats and not self._elsewhere:
                pauses = self._pauses.pop(self._place, None) or _Pauses()
                pauses.learn(self._longest_silence_ns)
                self._pauses[self._place] = pauses
                if len(self._pauses) > MOST_PLACES:
                    del self._pauses[next(iter(self._pauses))]
                steps = beat.step - self._step if beat.step and self._step is not None else 0
                self._loop.learn(self._longest_silence_ns, max(0, steps))
            self._step = beat.step
            sections = beat.main_sections
            section = NUMBER.sub("#", sections[-1].name) if sections else ""
            self.beats, self._place = beat.beats > 0, (beat.phase, section)
            self._beat_ns, self._longest_silence_ns = beat.last_beat_ns, 0
            self.last_progress_ns = max(self.last_progress_ns, beat.last_beat_ns)
            self.last_reported_ns = max(self.last_reported_ns, beat.last_beat_ns)
            self._elsewhere = set()
        self._longest_silence_ns = max(self._longest_silence_ns, now_ns - self._beat_ns)

    def read_processor(self, used: ProcessorTime, now_ns: int) -> None:
        """Take a reading of the processor time that the rank has used so far.

        A window shows whether it was in use; readings within the window show until when.
        """
        if used.main_s > self._newest_processor.main_s:
            self._main_rose_ns = now_ns
        if used.all_s > self._newest_processor.all_s:
            self._all_rose_ns = now_ns
        self._newest_processor = used
        before, since_ns = self._processor or (used, now_ns)
        seconds = (now_ns - since_ns) / NANOSECONDS
        if self._processor is not None and seconds < WINDOW_S:
            return
        self._processor = (used, now_ns)
        if used.main_s - before.main_s > MAIN_SHARE * seconds:
            self._active_ns = max(self._active_ns, self._main_rose_ns)
        if used.all_s - before.all_s > ALL_SHARE * seconds:
            self._active_ns = max(self._active_ns, self._all_rose_ns)

    def read_collectives(self, moment_ns: int) -> None:
        """Note that the rank began or ended a collective since the last reading, however short."""
        self.last_reported_ns = max(self.last_reported_ns, moment_ns)
        self.saw_movement(moment_ns)
        self.saw_new(moment_ns)

    def saw_movement(self, now_ns: int) -> None:
        """Note that a look saw the rank move through its code, or move bytes."""
        self.last_progress_ns = max(self.last_progress_ns, now_ns)
        self._active_ns = max(self._active_ns, now_ns)
        self._moved_ns = max(self._moved_ns, now_ns)

    def saw_new(self, now_ns: int) -> None:
        """Note that a look saw the rank do something new in this silence."""
        self._new_ns = max(self._new_ns, now_ns)

    def saw_elsewhere(self, place: str) -> None:
        """Note that the rank is elsewhere than its page says: this pause does not count there."""
        self._elsewhere.add(place)

    def forgive(self, lapse_ns: int, now_ns: int) -> None:
        """Discount time in which nobody watched (we were stopped, or starved)."""
        for name in ("last_progress_ns", "last_reported_ns", "_active_ns", "_new_ns"):
            setattr(self, name, min(getattr(self, name) + lapse_ns, now_ns))
        self._processor = None

    def silent_ns(self, now_ns: int) -> int:
        """Nanoseconds since the last progress."""
        return max(0, now_ns - self.last_progress_ns)

    def since_reported_ns(self, now_ns: int) -> int:
        """Nanoseconds since the rank last reported anything itself; looks at it do not count."""
        return max(0, now_ns - self.last_reported_ns)

    def idle_ns(self, now_ns: int) -> int:
        """Nanoseconds since the rank last used the processor or progressed."""
        return max(0, now_ns - max(self.last_progress_ns, self._active_ns))

    def circling_ns(self, now_ns: int) -> int:
        """Nanoseconds since the rank beat or did anything new."""
        return max(0, now_ns - self.last_new_ns)

    @property
    def last_new_ns(self) -> int:
        """When the rank last beat or did anything new."""
        return max(self._new_ns, self._beat_ns)

    @property
    def last_evident_ns(self) -> int:
        """When the rank last beat or was seen to move."""
        return max(self._beat_ns, self._moved_ns)

    def pace(self, rare_place: str = "") -> Pace | None:
        """Return how long silences were so far at the rank's place; None if it never beat.

        ``rare_place`` is a place other than the page's. What happens once in many steps is known
        after it was seen twice, so each time counts for two.
        """
        if not self.beats:
            return None
        if rare_place:
            pauses = self._rare.get(rare_place, _Pauses())
        else:
            pauses = self._pauses.get(self._place, _Pauses())
            if pauses.learned < self._loop.learned and self._place[0] in LOOP_PHASES:
                pauses = self._loop
        times = pauses.learned * (2 if rare_place else 1)
        longest_s = pauses.longest_ns / NANOSECONDS
        return None if times < 0 else Pace(longest_pause_s=longest_s, pauses=times)


class _Pauses:
    """The silences of one place. The first teaches nothing: first steps compile and connect."""

    def __init__(self, learned: int = -1) -> None:
        self.learned = learned
        self.longest_ns = 0

    def learn(self, pause_ns: int, times: int = 1) -> None:
        """Note the longest of ``times`` silences that ended since the last reading."""
        self.learned += times
        if self.learned > 0:
            self.longest_ns = max(self.longest_ns, pause_ns)


STEPS_KEPT = 101  # A changed pace shows after half of them
MARKS_TOLD = 16  # About 20 bytes each in the evidence of every rank
MOST_SUMS = 16  # Parts of a run that are kept apart; at least half as many are kept


class StepHistory:
    """When a rank made its steps, and how step times developed over a run of any length.

    Without steps, beats are counted. A count that goes back is another loop.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, int]] = deque(maxlen=STEPS_KEPT + 1)
        self._counts_steps = False
        self._median: tuple[float | None, int, int] = (None, 0, 0)
        self.sums: tuple[StepTimes, ...] = ()
        self._stride = 1

    def read(self, beat: Beat) -> None:
        """Take a reading of the page."""
        counts_steps = beat.step is not None
        count = beat.beats if beat.step is None else beat.step
        known = self._marks[-1][0] if self._marks else count - 1
        if counts_steps != self._counts_steps or count < known:
            self._marks.clear()
            self._median = (None, 0, 0)
            known = count - 1
        if count > known:
            self._marks.append((count, beat.last_beat_ns))
        self._counts_steps = counts_steps
        sums = beat.step_times
        # of too many, every second one is dropped, and later ones come half as often: so all are
        # the same number of timed steps apart
        if sums is None or (self.sums and sums.steps < self.sums[-1].steps + self._stride):
            return
        self.sums = (*self.sums, sums)
        if len(self.sums) > MOST_SUMS:
            self.sums = self.sums[::2]
            self._stride *= 2

    def newest(self, now_ns: int) -> tuple[StepMark, ...]:
        """Return the last readings at which the step count changed, oldest first."""
        marks = list(self._marks)[-MARKS_TOLD:] if self._counts_steps else []
        return tuple(
            StepMark(step, round((now_ns - at_ns) / NANOSECONDS, 3)) for step, at_ns in marks
        )

    @property
    def median_s(self) -> float | None:
        """Median seconds of the last steps; None before a whole step was seen.

        Steps between two readings of the page share the time between their newest beats. So one
        slow step (the first, which compiles, or one that saves) does not change the median.
        """
        newest = self._marks[-1][0] if self._marks else 0
        known, of_steps, at = self._median
        # 64 ranks are asked every second: recomputed once a tenth of the steps is new
        if known is not None and 0 <= newest - at <= of_steps // 10:
            return known
        seconds: list[float] = []
        for (count, at_ns), (before, since_ns) in pairwise(reversed(self._marks)):
            made = min(count - before, STEPS_KEPT - len(seconds))
            if not made:
                break
            seconds += [max(0, at_ns - since_ns) / NANOSECONDS / (count - before)] * made
        median = sorted(seconds)[len(seconds) // 2] if seconds else None
        self._median = median, len(seconds), newest
        return median
