"""The recorder's boundary: a failure of ours is said once, and nothing of it reaches training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from lightning_hangcheck import log

if TYPE_CHECKING:
    from collections.abc import Callable


class GivesUp(Protocol):
    """What can stop its work for good."""

    def give_up(self) -> None:
        """Do nothing more from now on."""


Owner = TypeVar("Owner", bound=GivesUp)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def harmless(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result | None]:
    """Method decorator: a failure is said once, its owner gives up, and None is returned."""

    @functools.wraps(method)
    def guarded(
        owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result | None:
        try:
            return method(owner, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the observer never hurts the observed
            log.once("recorder", f"recording stops, training goes on: {error!r}")
            owner.give_up()
            return None

    return guarded
