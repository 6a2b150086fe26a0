"""The options of `hangcheck run` that say whom to tell of a hang."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar, cast

import click
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.alerts.asked_for import AlertsAskedFor

Command = TypeVar("Command", bound="Callable[..., object]")


def alert_options(command: Command) -> Command:
    """Give a command the options; its function takes them as keyword arguments."""
    for option in (
        click.option(
            "--on-hang-exec",
            "on_hang_exec",
            metavar="CMD",
            envvar="HANGCHECK_ON_HANG_EXEC",
            help="Run CMD with sh, for 60 s at most, on a hang. (HANGCHECK_ON_HANG_EXEC)",
        ),
        click.option(
            "--notify",
            "notify",
            metavar="URL",
            multiple=True,
            envvar="HANGCHECK_NOTIFY",
            help="Send a message on a hang; may be given several times. (HANGCHECK_NOTIFY)",
        ),
    ):
        command = option(command)
    return command


def alerts_from(options: dict[str, object]) -> AlertsAskedFor:
    """Take out of a command's options what `alert_options` gave it."""
    from lightning_hangcheck.alerts.asked_for import AlertsAskedFor

    return AlertsAskedFor(
        notify=cast("tuple[str, ...]", options.pop("notify")),
        on_hang_exec=cast("str | None", options.pop("on_hang_exec")),
    )


def made_ready(asked_for: AlertsAskedFor) -> AlertsAskedFor:
    """Add what sending takes; what would fail in the night is refused at the start.

    Raises:
        BadUsage: A message could not be sent: a package is missing, or an address unknown.
    """
    environment = dict(os.environ) if asked_for.any else {}
    return replace(asked_for, environment=environment, packages=_packages(asked_for))


def _packages(asked_for: AlertsAskedFor) -> tuple[str, ...]:
    """Where a process of ours finds what it needs."""
    folders: list[str] = []
    if asked_for.notify:
        from lightning_hangcheck.alerts import notifying

        folders.append(notifying.apprise_folder())
        notifying.refuse_unknown(asked_for.notify)
    return tuple(dict.fromkeys(folders))
