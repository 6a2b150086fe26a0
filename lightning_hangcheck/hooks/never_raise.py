"""One guard over all hooks: a guest's hook that raises is switched off and said once."""

from __future__ import annotations

from functools import wraps
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


Guest = TypeVar("Guest")
HOOK_NAMES = ("setup", "teardown")  # besides all that begin with on_


def guard_hooks(guest: type[Guest]) -> type[Guest]:
    """Class decorator: let no hook of this class raise into training."""
    for name, function in list(vars(guest).items()):
        if callable(function) and (name.startswith("on_") or name in HOOK_NAMES):
            setattr(guest, name, _guarded(function))
    return guest


def switch_off(guest: object) -> None:
    """Make all hooks of one object do nothing, from now on."""
    for name in dir(type(guest)):
        if name.startswith("on_") or name in HOOK_NAMES:
            setattr(guest, name, _nothing)


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    @wraps(hook)
    def guarded_hook(guest: object, *arguments: object, **named: object) -> None:
        try:
            hook(guest, *arguments, **named)
        except Exception as error:  # noqa: BLE001 - the hooks' boundary: training must go on
            switch_off(guest)
            what = describe_exception(error)
            log.once(
                "hooks",
                f"{type(guest).__name__}.{hook.__name__} failed ({what}) and is switched off; "
                "training goes on. Please report it with the versions of your framework and of "
                "lightning-hangcheck",
            )

    return guarded_hook


def _nothing(*_: object, **__: object) -> None:
    """A hook that is switched off."""
