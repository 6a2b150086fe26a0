"""The boundary around everything of ours that runs within the user's calls: it never raises there.

What fails is said once. `recorder.announcer.attempt` is for work that is left out then;
`switched_off` says that something of ours, which would be asked again, is not asked any more.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import attempt, describe_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Guest = TypeVar("Guest")
HOOK_NAMES = ("setup", "teardown")  # besides all that begin with on_


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
