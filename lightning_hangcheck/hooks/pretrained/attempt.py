"""The boundary of what is added around a user's call: it never raises into that call.

Amounts as people read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable


Result = TypeVar("Result")


def attempt(what: str, work: Callable[[], Result]) -> Result | None:
    """Do something of our own beside the user's call.

    Args:
        what: Names it, for the one sentence that is said if it fails.
        work: What to do.

    Returns:
        What it returned; None if it failed.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - our additions must not end the user's own call
        shown = describe_exception(error)
        log.once(f"pretrained-{what}", f"{what} failed ({shown}) and is left out; all else goes on")
        return None


_UNITS = ("B", "kB", "MB", "GB", "TB")


def in_words(size: float) -> str:
    """Write a number of bytes with the unit that suits it, in steps of 1000: ``3.2 GB``."""
    for unit in _UNITS[:-1]:
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def several(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 prompt``, ``2 prompts``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
