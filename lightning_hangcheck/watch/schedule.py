"""When to look at a job again. Pure: time is a parameter, in monotonic nanoseconds.

A look costs each rank a few milliseconds, so none is taken while ranks report progress. Under
suspicion looks come often at first, and rarer the longer nothing changes. Activity that only looks
see does not restart a silence; otherwise a rank that computes for an hour without a report would be
looked at all the time.

When a silence passes a figure of the contract's table, the report must rest on a fresh look. So
that look begins earlier by a look's duration, and is judged again once the figure has passed: for
suspicions, and for waits that only a person could end. Any other hang must be seen after its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Limits
    from lightning_hangcheck.observe.watched_rank import WatchedRank

FIRST_LOOKS, BETWEEN_FIRST_LOOKS_S = 4, 1.0
WHILE_SUSPECT_S, LONGEST_OF_ALARM_S = 2.5, 60.0
"""Seconds between two looks during an alarm: doubled each time, until something moves."""
ALL_NAMED_S = 10.0
"""Silence by which anything suspect is reported: until then looks come as under suspicion."""
LEAST_BETWEEN_S = 0.8
"""Least distance of two samples that show a rank to be idle; see `judge.patience`."""
USUAL_LEAD_S, LONGEST_LEAD_S = 0.4, 1.0
"""How long before a figure its look begins: before a look has shown its duration, and at most."""
FRESH_NS = 2 * NANOSECONDS
"""Age up to which a look may be judged again: the longest lead, and as much for delays."""
LONGEST_S, MOST_OF_A_CORE = 30.0, 0.01
"""Longest pause between looks, unless they cost more than this share of a core (a target that the
performance page names)."""
BETWEEN_AFRESH = 6
"""Longest pauses between two restarts of frequent looks: each brings some nine looks."""
PAUSES_BEFORE_SURPRISE, LONGEST_PATIENCE_S = 3.0, 8.0
"""Multiple of a job's known pauses, and seconds at most, before its silence causes a look. If every
rank is idle, looks come as early as in any job while that costs no more than `MOST_OF_A_CORE`:
ranks that pause together look like ranks that wait for each other, to be named within 3 s."""


def figures_of(limits: Limits) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of silence at which the table says something new, whatever the pace.

    The first tuple has the foreseen figures: a look may begin before them.
    """
    foreseen: list[float] = []
    others: list[float] = []
    for name in limits.__struct_fields__:
        early = name.startswith("suspect_") or name in ("proven_after", "person_after")
        if name != "busy_factor":
            (foreseen if early else others).append(getattr(limits, name))
    return tuple(foreseen), tuple(others)


class Schedule:
    """Decides at each reading whether to look; figures are as `figures_of` returns them."""

    def __init__(
        self,
        look_after_s: float,
        foreseen: tuple[float, ...] = (),
        others: tuple[float, ...] = (),
    ) -> None:
        self._look_after_s, self._foreseen, self._others = look_after_s, foreseen, others
        self._passed = self._judged = self._looks = 0
        self._last_ns = 0
        self._silent_s = self._cost_s = 0.0
        self._lead_s = USUAL_LEAD_S
        self._interval_s, self._alarm_interval_s = BETWEEN_FIRST_LOOKS_S, WHILE_SUSPECT_S
        self._stood_still = False
        self._afresh_ns = self._still_ns = 0
        self._early, self._early_again_ns = False, 0

    def due_for(self, alive: Sequence[WatchedRank], now_ns: int) -> bool:
        """Whether to look now, by the rank that has reported nothing for longest."""
        silent = max(alive, key=lambda rank: rank.progress.since_reported_ns(now_ns), default=None)
        if silent is None:
            return False
        silent_s = silent.progress.since_reported_ns(now_ns) / NANOSECONDS
        if silent_s < self._look_after_s and not self._looks:
            self.calm()
            self._passed = 0
            return False
        pace = silent.progress.pace()
        return self.due(
            silent_s,
            pace.longest_pause_s if pace is not None and pace.known else 0.0,
            min(rank.progress.idle_ns(now_ns) for rank in alive) / NANOSECONDS,
            now_ns,
            _passed_by(alive, now_ns + int(self._lead_s * NANOSECONDS), self._foreseen)
            + _passed_by(alive, now_ns, self._others),
        )

    def judged(self, alive: Sequence[WatchedRank], now_ns: int) -> None:
        """Note that the ranks were judged at this moment."""
        self._judged = _passed_by(alive, now_ns, self._foreseen)

    def says_more(self, alive: Sequence[WatchedRank], now_ns: int) -> bool:
        """Whether a foreseen figure has passed since the last judgement; the look is fresh."""
        if not alive or not self._looks or now_ns - self._last_ns > FRESH_NS:
            return False
        return _passed_by(alive, now_ns, self._foreseen) > self._judged

    def due(
        self, silent_s: float, longest_pause_s: float, idle_s: float, now_ns: int, passed: int = 0
    ) -> bool:
        """Whether to look now.

        ``silent_s``: the longest silence of any rank. ``longest_pause_s``: that rank's longest
        known pause, 0 if unknown. ``idle_s``: how long all ranks have been idle. ``passed``:
        figures of the table that the silences will have passed when a look ends.
        """
        self._silent_s = silent_s
        since_look = (now_ns - self._last_ns) / NANOSECONDS if self._looks else float("inf")
        apart = since_look >= LEAST_BETWEEN_S
        passes = passed > self._passed
        if not passes or apart:
            self._passed = passed
        surprise = min(PAUSES_BEFORE_SURPRISE * longest_pause_s, LONGEST_PATIENCE_S)
        threshold = max(self._look_after_s, surprise)
        if self._look_after_s <= idle_s and silent_s < threshold:
            if not self._early and now_ns >= self._early_again_ns:
                rest_s = FIRST_LOOKS * self._cost_s / MOST_OF_A_CORE
                self._early, self._early_again_ns = True, now_ns + int(rest_s * NANOSECONDS)
            threshold = self._look_after_s if self._early else threshold
        if silent_s < threshold:
            self.calm()
            return False
        turned_idle = self._look_after_s <= idle_s < since_look
        if turned_idle:
            self._looks, self._interval_s = 0, BETWEEN_FIRST_LOOKS_S
        return turned_idle or (passes and apart) or since_look >= self._interval_s

    def looked(
        self,
        begun_ns: int,
        *,
        suspicious: bool,
        moved: bool = False,
        stood_still: bool = False,
        cost_s: float = 0.0,
        lasted_s: float = 0.0,
    ) -> None:
        """Note when a look began, and what it led to.

        ``moved``: since the look before, a rank advanced or did something new, or the alarm
        changed. ``stood_still``: a rank did not move through its code. ``cost_s``: processor time
        of the sidecar and the processes it started. ``lasted_s``: time until the look was judged.
        """
        self._lead_s = min(LONGEST_LEAD_S, max(lasted_s, self._lead_s / 2))
        self._cost_s = max(cost_s, self._cost_s / 2)
        slowest_s = max(LONGEST_S, self._cost_s / MOST_OF_A_CORE)
        seldom = self._interval_s > WHILE_SUSPECT_S and begun_ns >= self._afresh_ns
        if stood_still and not self._stood_still and seldom:
            self._looks, self._still_ns = 0, begun_ns  # it moved before: a hang may begin here
            self._afresh_ns = begun_ns + int(BETWEEN_AFRESH * slowest_s * NANOSECONDS)
        self._stood_still = stood_still
        still_s = (begun_ns - self._still_ns) / NANOSECONDS if self._still_ns else self._silent_s
        self._looks += 1
        self._last_ns = begun_ns
        if moved or not suspicious:
            self._alarm_interval_s = WHILE_SUSPECT_S
        if self._looks < FIRST_LOOKS:
            self._interval_s = BETWEEN_FIRST_LOOKS_S
        elif suspicious:
            self._interval_s = self._alarm_interval_s
            self._alarm_interval_s = min(2 * self._alarm_interval_s, LONGEST_OF_ALARM_S)
        elif min(self._silent_s, still_s) < ALL_NAMED_S:
            self._interval_s = WHILE_SUSPECT_S
        else:
            self._interval_s = min(2 * self._interval_s, slowest_s)

    def calm(self) -> None:
        """Start afresh: all ranks advance."""
        self._looks = self._still_ns = 0
        self._early = False
        self._interval_s, self._alarm_interval_s = BETWEEN_FIRST_LOOKS_S, WHILE_SUSPECT_S


def _passed_by(alive: Sequence[WatchedRank], now_ns: int, figures: Sequence[float]) -> int:
    if not alive:
        return 0
    silent = [rank.progress.silent_ns(now_ns) / NANOSECONDS for rank in alive]
    idle = [rank.progress.idle_ns(now_ns) / NANOSECONDS for rank in alive]
    # a stopped rank's time begins when it was first seen stopped, later than its silence
    stopped = max(rank.stopped_ns(now_ns) for rank in alive) / NANOSECONDS
    ends = (min(silent), max(silent), min(idle), max(idle), stopped)
    return sum(silence_s >= figure for silence_s in ends for figure in figures)
