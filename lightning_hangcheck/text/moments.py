"""Moments as ISO 8601 UTC, read and written with `datetime`, which no rank imports."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Literal

Precision = Literal["seconds", "milliseconds", "microseconds"]
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # Where the clock's nanoseconds count from


def utc(moment: datetime, precision: Precision = "milliseconds") -> str:
    """Write a moment as ISO 8601 UTC, cut to the precision."""
    return moment.astimezone(timezone.utc).isoformat(timespec=precision)[:-6] + "Z"


def read_utc(text: str) -> datetime:
    """Read a moment in ISO 8601 UTC, with a fraction of any length; else ValueError."""
    # Python 3.10's own reader knows neither ``Z`` nor fractions of 1 to 5 digits
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}")
    if moment.tzinfo is not None:
        raise ValueError(f"{text!r} is not in UTC")
    return moment.replace(tzinfo=timezone.utc)


def before(text: str, seconds: float) -> str:
    """Return the moment ``seconds`` before a moment that `utc` wrote."""
    return utc(read_utc(text) - timedelta(seconds=seconds))


def moment_of(clock_ns: int) -> datetime:
    """Convert nanoseconds since 1970 to a moment, to the microsecond."""
    return EPOCH + timedelta(microseconds=clock_ns // 1000)
