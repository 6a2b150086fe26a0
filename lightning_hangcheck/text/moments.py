"""Moments: nanoseconds of a clock, and the one form in which a moment is written and read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Literal

Precision = Literal["seconds", "milliseconds", "microseconds"]

NANOSECONDS = 1_000_000_000
"""Of a second."""
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""Where the clock's nanoseconds count from."""


def utc_now(precision: Precision = "milliseconds") -> str:
    """Return the present moment, as `utc` writes it."""
    return utc(datetime.now(timezone.utc), precision)


def utc(moment: datetime, precision: Precision = "milliseconds") -> str:
    """Write a moment as ISO 8601 UTC; what is finer than the precision is cut off."""
    bare = moment.astimezone(timezone.utc).replace(tzinfo=None)
    return f"{bare.isoformat(timespec=precision)}Z"


def read_utc(text: str) -> datetime:
    """Read a moment that `utc` wrote, or any other ISO 8601 UTC with a fraction of any length.

    Raises:
        ValueError: It is no moment, or one of another time zone.
    """
    # Python 3.10's own reader knows neither ``Z`` nor fractions of 1 to 5 digits
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}.{fraction[:6]:0<6}")
    if moment.tzinfo is not None:
        raise ValueError(f"{text!r} is not in UTC")
    return moment.replace(tzinfo=timezone.utc)


def before(text: str, seconds: float) -> str:
    """Return the moment so many seconds before another one that `utc` wrote."""
    return utc(read_utc(text) - timedelta(seconds=seconds))


def moment_of(clock_ns: int) -> datetime:
    """Return the moment of the clock's nanoseconds since 1970, to the microsecond."""
    return EPOCH + timedelta(microseconds=clock_ns // 1000)
