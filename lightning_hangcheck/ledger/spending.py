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
NEVER = (0, 0)


class Spending:
    """Adds up where one rank's time goes.

    A reading between two phase edges charges the time since the previous reading to the phase shown
    now, so the sums are right to one polling interval (a quarter of a second by default). Saves are
    counted by the rank itself: one may be over in a hundredth of that.
    """

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = {}
        self._read_ns: int | None = None
        self._step: int | None = None
        self._save: SaveMark | None = None
        self._unsaved_since_ns: int | None = None
        self._first_step: tuple[int, int] | None = None
        self._last_step: tuple[int, int] | None = None
        self._epochs = _Epochs()

    def read(self, beat: Beat, now_ns: int) -> None:
        """Take one reading.

        Args:
            beat: The rank's page.
            now_ns: Monotonic nanoseconds.
        """
        if self._read_ns is not None and beat.phase is not None:
            spent = (now_ns - self._read_ns) / NANOSECONDS
            self._seconds[beat.phase] = self._seconds.get(beat.phase, 0.0) + spent
        steps_begin = self._step is None and beat.step is not None
        if steps_begin or beat.save != self._save:
            # what stood on the page at the first reading happened at a moment that nobody saw
            self._unsaved_since_ns = now_ns if self._read_ns is not None else None
        if self._loads(beat.save):
            self._first_step = self._last_step = None
        if beat.step is not None and beat.step != self._step:
            self._last_step = (beat.step, now_ns)
            self._first_step = self._first_step or self._last_step
        self._epochs.read(beat.epoch, now_ns)
        self._read_ns = now_ns
        self._step, self._save = beat.step, beat.save

    def _loads(self, save: SaveMark | None) -> bool:
        """Whether a checkpoint was loaded since: the steps that it holds were made by another."""
        saves = self._save.number if self._save is not None else 0
        return save is not None and save != self._save and save.number == saves

    def spent(self) -> Spent:
        """Return the sums so far."""
        saved_step = (self._save.step or 0) if self._save is not None else 0
        (began, began_ns), (ended, ended_ns) = self._first_step or NEVER, self._last_step or NEVER
        return Spent(
            phases=longest_first(self._seconds),
            steps_unsaved=None if self._step is None else self._step - saved_step,
            saves=self._save.number if self._save is not None else 0,
            last_save_at=self._save.at if self._save is not None and self._save.number else None,
            unsaved_s=self._unsaved_s(),
            steps=max(0, ended - began),
            training_s=round((ended_ns - began_ns) / NANOSECONDS, 3),
            epoch_s=self._epochs.average_s,
        )

    def _unsaved_s(self) -> float | None:
        if self._unsaved_since_ns is None or self._read_ns is None:
            return None
        return round((self._read_ns - self._unsaved_since_ns) / NANOSECONDS, 3)


class _Epochs:
    """Measures epochs between the moments at which their number was seen to change."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._first: tuple[int, int] | None = None
        self._last: tuple[int, int] | None = None

    @property
    def average_s(self) -> float | None:
        """Seconds of an epoch, None before one was seen whole."""
        if self._first is None or self._last is None or self._first == self._last:
            return None
        (first, began_ns), (last, ended_ns) = self._first, self._last
        return round((ended_ns - began_ns) / NANOSECONDS / (last - first), 3)

    def read(self, epoch: int | None, now_ns: int) -> None:
        """Take a reading; a number that goes back is another training, measured afresh."""
        before, self._epoch = self._epoch, epoch
        if epoch is None or before is None or epoch == before:
            return
        self._last = (epoch, now_ns)
        if self._first is None or epoch < before:
            self._first = self._last


def longest_first(seconds: Mapping[Phase, float]) -> tuple[PhaseTime, ...]:
    """Write seconds by phase down, to the millisecond."""
    phases = sorted(seconds.items(), key=lambda item: -item[1])
    return tuple(PhaseTime(phase, round(spent, 3)) for phase, spent in phases)


def rank_hours(world_size: int, seconds: float) -> float:
    """Return what so long a time costs: every rank of the job pays for it, in rank hours."""
    return max(world_size, 1) * seconds / SECONDS_PER_HOUR


STANDING = ("suspect", "hang", "dead")
OVER = ("crashed", "finished")
"""How a round ends, and with it its silence."""


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
        """Take a verdict; one that tells a silence again, or its aftermath, begins no other.

        Args:
            verdict: That is told.
            now_ns: Monotonic nanoseconds.
        """
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
        standing, self._standing = self._standing, None
        if standing is None:
            return
        cause = standing.cause or ""
        self._over.append(
            Stall(
                verdict=standing.verdict,
                cause=cause,
                phase=standing.phase or "",
                seconds=round(seconds, 3),
                rank_hours=round(rank_hours(standing.world_size, seconds), 6),
                explained=cause not in ("", "unknown"),
                summary=standing.summary,
            )
        )


class Price(Struct, frozen=True):
    """What one rank costs for an hour.

    Attributes:
        model: Part of the name of the GPUs that it is for; empty for all others.
    """

    per_hour: float
    model: str = ""


class Prices(Struct, frozen=True):
    """All prices; none at all is fine, too."""

    prices: tuple[Price, ...] = ()

    def cost(self, gpus: Sequence[str], ranks: int, seconds: float) -> float | None:
        """Return what so many ranks cost for so long; None where no price is for their GPUs.

        Args:
            gpus: Models of the GPUs of their machine.
            ranks: Each pays for one GPU, or for one machine without any.
            seconds: Of each of them.
        """
        per_hour = self._per_hour(gpus)
        return None if per_hour is None else per_hour * ranks * seconds / SECONDS_PER_HOUR

    def _per_hour(self, gpus: Sequence[str]) -> float | None:
        named = " ".join(gpus).lower()
        for price in self.prices:
            if price.model and price.model.lower() in named:
                return price.per_hour
        return next((price.per_hour for price in self.prices if not price.model), None)


def read_prices(texts: Iterable[str]) -> Prices:
    """Read prices such as ``0.89/h`` and ``A100=1.89/h``; several may stand behind commas.

    Raises:
        BadUsage: One of them is no price.
    """
    single = (text.strip() for several in texts for text in several.split(","))
    return Prices(tuple(_read(text) for text in single if text))


def _read(text: str) -> Price:
    model, equals, amount = text.rpartition("=")
    try:
        per_hour = float(amount.strip().removesuffix("/h"))
    except ValueError:
        per_hour = math.nan
    if not 0 <= per_hour < math.inf or (equals and not model.strip()):
        raise BadUsage(
            f"--price {text} is no price of an hour",
            "write for example --price 0.89/h, or --price A100=1.89/h",
        )
    return Price(per_hour, model.strip())
