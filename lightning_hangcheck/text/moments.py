"""Moments: nanoseconds of a clock, and the one way in which a moment is written."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

NANOSECONDS = 1_000_000_000
"""Of a second."""


def utc_now() -> str:
    """Return the present moment, ISO 8601 UTC with milliseconds."""
    return utc(datetime.now(timezone.utc))


def utc(moment: datetime) -> str:
    """Write a moment as ISO 8601 UTC with milliseconds."""
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def before(moment: str, seconds: float) -> str:
    """Return the moment so many seconds before another one that `utc` wrote."""
    return utc(datetime.fromisoformat(moment.replace("Z", "+00:00")) - timedelta(seconds=seconds))
