"""The one way in which the sidecar writes a moment."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


def utc_now() -> str:
    """Return the present moment, ISO 8601 UTC with milliseconds."""
    return utc(datetime.now(timezone.utc))


def utc(moment: datetime) -> str:
    """Write a moment as ISO 8601 UTC with milliseconds."""
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def utc_before(seconds: float) -> str:
    """Return the moment so many seconds ago."""
    return utc(datetime.now(timezone.utc) - timedelta(seconds=seconds))
