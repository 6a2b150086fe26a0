"""The time limits that a caller gives to a guard."""

from __future__ import annotations

from lightning_hangcheck.errors import BadUsage


def check_limit(name: str, seconds: float | None) -> None:
    """Refuse a limit that is none.

    Args:
        name: Of the argument.
        seconds: As the caller gave it; None for the default.

    Raises:
        BadUsage: It is not above 0, or endless: everything here has a limit.
    """
    if seconds is not None and not 0 < seconds < float("inf"):
        raise BadUsage(f"{name}={seconds!r} is no positive number", f"write seconds: {name}=60.0")
