"""How long a guard may wait: the limit is checked, and what it waits for is said meanwhile."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTICE_AFTER = 5.0  # seconds; within the 10 s after which the sidecar names a suspect


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


def notice_after(limit: float) -> float:
    """Seconds after which a wait is worth a line: half of a limit that is short itself."""
    return min(NOTICE_AFTER, limit / 2)


@contextmanager
def said_while_waiting(sentence: str, limit: float) -> Iterator[None]:
    """Print a sentence once if the body takes longer than a few seconds.

    Args:
        sentence: Who waits for what.
        limit: Seconds after which the body gives up.
    """
    timer = threading.Timer(notice_after(limit), log.once, (sentence, sentence))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
