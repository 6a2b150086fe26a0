"""The boundary around everything of ours that runs within the user's calls: it never raises there.

What fails is said once. `attempt` is for work that is left out then; `switched_off` says that
something of ours, which would be asked again, is not asked any more.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Guest = TypeVar("Guest")
Result = TypeVar("Result")
HOOK_NAMES = ("setup", "teardown")  # besides all that begin with on_


def attempt(what: str, work: Callable[..., Result], *given: Any) -> Result | None:  # noqa: ANN401
    """Do something of our own beside the user's call; None if it failed."""
    try:
        return work(*given)
    except Exception as error:  # noqa: BLE001 - our additions must not end the user's own call
        shown = describe_exception(error)
        log.once(f"attempt-{what}", f"{what} failed ({shown}) and is left out; all else goes on")
        return None


@contextmanager
def later(seconds: float, what: str, work: Callable[..., object], *given: object) -> Iterator[None]:
    """Do something of our own, in another thread, once the body has taken so long."""
    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), attempt, (what, work, *given))
    timer.daemon = True  # a process need not wait for it at its end
    attempt(f"the timer of {what}", timer.start)  # where there is no further thread, without it
    try:
        yield
    finally:
        timer.cancel()


def switched_off(what: str, error: Exception, goes_on: str) -> None:
    """Say once that something of ours failed and is not asked again."""
    log.once(
        f"off-{what}",
        f"{what} ({describe_exception(error)}){goes_on}. Please report it with the versions of "
        "the framework and of lightning-hangcheck",
    )


def guard_hooks(guest: type[Guest]) -> type[Guest]:
    """Class decorator: a hook of this class that raises switches all of its object off."""

    def guarded(name: str, hook: Callable[..., None]) -> Callable[..., None]:
        @wraps(hook)
        def guarded_hook(guest: object, *arguments: object, **named: object) -> None:
            try:
                hook(guest, *arguments, **named)
            except Exception as error:  # noqa: BLE001 - the hooks' boundary: training must go on
                switch_off(guest)
                failed = f"{type(guest).__name__}.{name} failed"
                switched_off(failed, error, " and is switched off; training goes on")

        return guarded_hook

    for name, function in list(vars(guest).items()):
        if callable(function) and (name.startswith("on_") or name in HOOK_NAMES):
            setattr(guest, name, guarded(name, function))
    return guest


def switch_off(guest: object) -> None:
    """Make all hooks of one object do nothing, from now on."""
    for name in dir(type(guest)):
        if name.startswith("on_") or name in HOOK_NAMES:
            setattr(guest, name, lambda *_, **__: None)
