"""What a run spends: time by phase, silences, and what an hour costs. Pure: time is a parameter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.model.case import PhaseTime, Spent
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightning_hangcheck.model.beat import Beat, SaveMark
    from lightning_hangcheck.model.slugs import Phase
    from lightning_hangcheck.model.verdict import Verdict

SECONDS_PER_HOUR = 3600.0
Seen = list[tuple[int, int]]
"""A count of a rank with the moments at which it was seen to be new: the first, and the last."""


class Spending:
    """Adds up where one rank's time goes, right to one polling interval.

    Saves are counted by the rank itself: one may be over in a hundredth of that.
    """

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._read_ns: int | None = None
        self._step: int | None = None
        self._epoch: int | None = None
        self._save: SaveMark | None = None
        self._unsaved_since_ns: int | None = None
        self._steps: Seen = []
        self._epochs: Seen = []

    def read(self, beat: Beat, now_ns: int) -> None:
        """Take one reading."""
        if self._read_ns is not None and beat.phase is not None:
            spent = (now_ns - self._read_ns) / NANOSECONDS
            self._seconds[beat.phase] = self._seconds.get(beat.phase, 0.0) + spent
        steps_begin = self._step is None and beat.step is not None
        if steps_begin or beat.save != self._save:
            # what stood on the page at the first reading happened at a moment that nobody saw
            self._unsaved_since_ns = now_ns if self._read_ns is not None else None
        saves = self._save.number if self._save is not None else 0
        if beat.save is not None and beat.save != self._save and beat.save.number == saves:
            self._steps = []  # a checkpoint was loaded: others made the steps that it holds
        if beat.step is not None and beat.step != self._step:
            self._steps = [*self._steps[:1], (beat.step, now_ns)]
        before, epoch = self._epoch, beat.epoch
        if epoch is not None and before is not None and epoch != before:
            if epoch < before:
                self._epochs = []  # it goes back: another training, measured afresh
            self._epochs = [*self._epochs[:1], (epoch, now_ns)]
        self._read_ns = now_ns
        self._step, self._epoch, self._save = beat.step, beat.epoch, beat.save

    def spent(self) -> Spent:
        """Return the sums so far."""
        steps, training_s = _made(self._steps)
        epochs, epochs_s = _made(self._epochs)
        unsaved_s = None
        if self._unsaved_since_ns is not None and self._read_ns is not None:
            unsaved_s = round((self._read_ns - self._unsaved_since_ns) / NANOSECONDS, 3)
        return Spent(
            phases=longest_first(self._seconds),
            saves=self._save.number if self._save is not None else 0,
            unsaved_s=unsaved_s,
            steps=steps,
            training_s=round(training_s, 3),
            epoch_s=round(epochs_s / epochs, 3) if epochs else None,
        )


def _made(seen: Seen) -> tuple[int, float]:
    """How many were made between the first and the last, and seconds; nothing before two."""
    if not seen:
        return 0, 0.0
    (first, began_ns), (last, ended_ns) = seen[0], seen[-1]
    return max(0, last - first), (ended_ns - began_ns) / NANOSECONDS


def longest_first(seconds: Mapping[Phase, float]) -> tuple[PhaseTime, ...]:
    """Write seconds by phase down, to the millisecond."""
    phases = sorted(seconds.items(), key=lambda item: -item[1])
    return tuple(PhaseTime(phase, round(spent, 3)) for phase, spent in phases)


def rank_hours(world_size: int, seconds: float) -> float:
    """Return what so long a time costs: every rank of the job pays for it, in rank hours."""
    return max(world_size, 1) * seconds / SECONDS_PER_HOUR


STANDING = ("suspect", "hang", "dead")
OVER = ("crashed", "finished")  # How a round ends, and with it its silence.


class Stall(Struct, frozen=True, kw_only=True):
    """One silence.

    Attributes:
        verdict: The gravest that was told of it: ``suspect``, ``hang``, ``dead``.
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
    """Collects the silences of one run from the verdicts that are told."""

    def __init__(self) -> None:
        self._over: list[Stall] = []
        self._standing: Verdict | None = None
        self._since_ns = 0

    def take(self, verdict: Verdict, now_ns: int) -> None:
        """Take a verdict; one that tells a silence again, or its aftermath, begins no other."""
        if verdict.verdict in STANDING:
            since_ns = now_ns - int(verdict.stalled_for_s * NANOSECONDS)
            self._since_ns = min(self._since_ns, since_ns) if self._standing else since_ns
            self._standing = verdict
        elif verdict.verdict == "recovered":
            self._close(verdict.stalled_for_s)
        elif verdict.verdict in OVER:
            self._close((now_ns - self._since_ns) / NANOSECONDS)

    def ended(self, now_ns: int) -> tuple[Stall, ...]:
        """Return all silences of the run, which ends now; one that stands lasted until now."""
        self._close((now_ns - self._since_ns) / NANOSECONDS)
        return tuple(self._over)

    def _close(self, seconds: float) -> None:
        raised, self._standing = self._standing, None
        if raised is None:
            return
        cause = raised.cause or ""
        self._over.append(
            Stall(
                verdict=raised.verdict,
                cause=cause,
                phase=raised.phase or "",
                seconds=round(seconds, 3),
                rank_hours=round(rank_hours(raised.world_size, seconds), 6),
                explained=cause not in ("", "unknown"),
                summary=raised.summary,
            )
        )


class Price(Struct, frozen=True):
    """What one rank costs for an hour."""

    per_hour: float
    model: str = ""


class Prices(Struct, frozen=True):
    """All prices; none at all is fine, too."""

    prices: tuple[Price, ...] = ()

    def cost(self, gpus: Sequence[str], ranks: int, seconds: float) -> float | None:
        """Return what so many ranks cost for so long; None where no price is for their GPUs."""
        named = " ".join(gpus).lower()
        own = [price for price in self.prices if price.model and price.model.lower() in named]
        fitting = own or [price for price in self.prices if not price.model]
        return fitting[0].per_hour * ranks * seconds / SECONDS_PER_HOUR if fitting else None


def read_prices(texts: Iterable[str]) -> Prices:
    """Read prices such as ``0.89/h`` and ``A100=1.89/h``; several may stand behind commas.

    Raises:
        BadUsage: One of them is no price.
    """
    prices = []
    for text in (text.strip() for several in texts for text in several.split(",")):
        if not text:
            continue
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
        prices.append(Price(per_hour, model.strip()))
    return Prices(tuple(prices))
