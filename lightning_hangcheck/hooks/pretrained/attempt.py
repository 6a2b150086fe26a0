"""The boundary of what is added around a user's call: it never raises into that call."""

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
