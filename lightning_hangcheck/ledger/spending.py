"""Adds up what a run spends: time by phase, stalls, cost. Pure: time is a parameter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import PhaseTime, Spent
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightning_hangcheck.model.slugs import Phase
    from lightning_hangcheck.model.verdict import Verdict

SECONDS_PER_HOUR = 3600.0
Seen = list[tuple[int, int]]
"""Values of a rank's counter, first and newest, with the time in ns when each was first seen."""


class Spending:
    """Adds up how one rank spends its time, to within one polling interval.

    The rank itself counts saves, as one may take a hundredth of that interval.
    """

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._last = Beat(pid=0)
        self._read_ns: int | None = None
        self._unsaved_since_ns: int | None = None
        self._steps: Seen = []
        self._epochs: Seen = []

    def read(self, beat: Beat, now_ns: int) -> None:
        """Add one reading of the rank's page."""
        last, read_ns = self._last, self._read_ns
        self._last, self._read_ns = beat, now_ns
        if read_ns is not None and beat.phase is not None:
            spent = (now_ns - read_ns) / NANOSECONDS
            self._seconds[beat.phase] = self._seconds.get(beat.phase, 0.0) + spent
        if beat.save != last.save or (last.step is None and beat.step is not None):
            # the time of what the first reading shows is unknown
            self._unsaved_since_ns = None if read_ns is None else now_ns
        if beat.save != last.save and _saves(beat) == _saves(last):
            self._steps.clear()  # a checkpoint was loaded: other processes made its steps
        if beat.step is not None and beat.step != last.step:
            self._steps[1:] = [(beat.step, now_ns)]
        if beat.epoch is not None and last.epoch is not None and beat.epoch != last.epoch:
            if beat.epoch < last.epoch:
                self._epochs.clear()  # epochs start over: another training, measured anew
            self._epochs[1:] = [(beat.epoch, now_ns)]

    def spent(self) -> Spent:
        """Return the sums so far."""
        steps, training_s = _made(self._steps)
        epochs, epochs_s = _made(self._epochs)
        unsaved_s = None
        if self._unsaved_since_ns is not None and self._read_ns is not None:
            unsaved_s = round((self._read_ns - self._unsaved_since_ns) / NANOSECONDS, 3)
        return Spent(
            phases=longest_first(self._seconds),
            saves=_saves(self._last),
            unsaved_s=unsaved_s,
            steps=steps,
            training_s=round(training_s, 3),
            epoch_s=round(epochs_s / epochs, 3) if epochs else None,
        )


def _saves(beat: Beat) -> int:
    return beat.save.number if beat.save is not None else 0


def _made(seen: Seen) -> tuple[int, float]:
    """Return the increase from first to newest value, and the seconds between; 0 if only one."""
    if not seen:
        return 0, 0.0
    (first, began_ns), (last, ended_ns) = seen[0], seen[-1]
    return max(0, last - first), (ended_ns - began_ns) / NANOSECONDS


def longest_first(seconds: Mapping[Phase, float]) -> tuple[PhaseTime, ...]:
    """Sort seconds by phase, longest first, rounded to the millisecond."""
    phases = sorted(seconds.items(), key=lambda item: -item[1])
    return tuple(PhaseTime(phase, round(spent, 3)) for phase, spent in phases)


class Stall(Struct, frozen=True, kw_only=True):
    """A stall of a run.

    Attributes:
        verdict: The verdict when it ended: ``suspect``, ``hang``, ``dead``.
        explained: Whether that verdict named a cause.
    """

    verdict: str
    cause: str = ""
    phase: str = ""
    seconds: float
    rank_hours: float
    explained: bool
    summary: str = ""


class Stalls:
    """Collects the stalls of one run from its verdicts."""

    def __init__(self) -> None:
        self._over: list[Stall] = []
        self._alarm: Verdict | None = None
        self._since_ns = 0

    def take(self, verdict: Verdict, now_ns: int) -> None:
        """Add a verdict; a repeated verdict on a stall, or its aftermath, begins no new stall."""
        if verdict.verdict in ("suspect", "hang", "dead"):
            since_ns = now_ns - int(verdict.stalled_for_s * NANOSECONDS)
            self._since_ns = min(self._since_ns, since_ns) if self._alarm else since_ns
            self._alarm = verdict
        elif verdict.verdict in ("recovered", "crashed", "finished"):
            self.ended(now_ns)

    def ended(self, now_ns: int) -> tuple[Stall, ...]:
        """Return all stalls of the run; the current one ends now."""
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            seconds = (now_ns - self._since_ns) / NANOSECONDS
            stall = Stall(
                verdict=alarm.verdict,
                cause=alarm.cause or "",
                phase=alarm.phase or "",
                seconds=round(seconds, 3),
                rank_hours=round(max(alarm.world_size, 1) * seconds / SECONDS_PER_HOUR, 6),
                explained=alarm.cause not in (None, "unknown"),
                summary=alarm.summary,
            )
            self._over.append(stall)
        return tuple(self._over)


class Prices(Struct, frozen=True):
    """Prices of one rank for one hour, by part of a GPU's name; an empty part fits all others."""

    per_hour: dict[str, float] = {}

    def cost(self, gpus: Sequence[str], ranks: int, seconds: float) -> float | None:
        """Return the cost of these ranks for this time; None if no price fits their GPUs."""
        named = " ".join(gpus).lower()
        own = (price for model, price in self.per_hour.items() if model and model in named)
        price = next(own, self.per_hour.get(""))
        return None if price is None else price * ranks * seconds / SECONDS_PER_HOUR


def read_prices(texts: Iterable[str]) -> Prices:
    """Parse prices such as ``0.89/h`` and ``A100=1.89/h``, also several separated by commas.

    Raises:
        BadUsage: A text is no price.
    """
    prices: dict[str, float] = {}
    for text in filter(None, map(str.strip, ",".join(texts).split(","))):
        model, equals, amount = text.rpartition("=")
        try:
            per_hour = float(amount.strip().removesuffix("/h"))
        except ValueError:
            per_hour = math.nan
        if not 0 <= per_hour < math.inf or (equals and not model.strip()):
            raise BadUsage(
                f"price {text} is not a price per hour",
                "write for example 0.89/h, or A100=1.89/h",
            )
        prices.setdefault(model.strip().lower(), per_hour)
    return Prices(prices)
