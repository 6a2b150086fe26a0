"""The options of `hangcheck attach` that say on which hosts to look, and how to get there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import click

from lightning_hangcheck.cli.options import positive
from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.attach.hosts.visit import Way

Command = TypeVar("Command", bound="Callable[..., object]")
MOST_CHARACTERS = 4 * 1024 * 1024


class Hosts(NamedTuple):
    """On which hosts to look, how to get there, and on how many at a time."""

    names: tuple[str, ...]
    way: Way
    at_once: int


def host_options(command: Command) -> Command:
    """Give a command the options; its function takes them as keyword arguments."""
    for option in (
        click.option(
            "--at-once",
            type=click.IntRange(1, 1024),
            envvar="HANGCHECK_AT_ONCE",
            default=32,
            help="Hosts at a time [default: 32]. (HANGCHECK_AT_ONCE)",
        ),
        click.option(
            "--host-timeout",
            metavar="SECONDS",
            callback=positive,
            envvar="HANGCHECK_HOST_TIMEOUT",
            default="60",
            help="Time for one host [default: 60]. (HANGCHECK_HOST_TIMEOUT)",
        ),
        click.option(
            "--ssh",
            metavar="CMD",
            envvar="HANGCHECK_SSH",
            default="ssh",
            help="How to get there, such as 'ssh -p 2222' [default: ssh]. (HANGCHECK_SSH)",
        ),
        click.option(
            "--remote-command",
            metavar="CMD",
            envvar="HANGCHECK_REMOTE_COMMAND",
            default="hangcheck",
            help="What hangcheck is there: /env/bin/hangcheck. (HANGCHECK_REMOTE_COMMAND)",
        ),
        click.option(
            "--hostfile",
            metavar="FILE",
            help="Look on these hosts, by ssh: one a line; - reads standard input.",
        ),
    ):
        command = option(command)
    return command


def hosts_from(options: dict[str, object], *, local_values: bool) -> Hosts | None:
    """Take out of a command's options what `host_options` gave it.

    Returns:
        None where no hostfile is named.

    Raises:
        BadUsage: The hostfile cannot be read or used, or ``--ssh`` is no command.
    """
    name, ssh, remote, limit_s, at_once = (
        options.pop(one) for one in ("hostfile", "ssh", "remote_command", "host_timeout", "at_once")
    )
    if name is None:
        return None
    # imported here so that a look at this host needs no part of it
    from lightning_hangcheck.attach.hosts.hostfile import read_hosts
    from lightning_hangcheck.attach.hosts.visit import Way, read_ssh

    file = cast("str", name)
    way = Way(
        ssh=read_ssh(cast("str", ssh)),
        remote_command=cast("str", remote),
        limit_s=cast("float", limit_s),
        local_values=local_values,
    )
    return Hosts(read_hosts(_text(file), file), way, cast("int", at_once))


def _text(name: str) -> str:
    """Read the file; it may be a pipe: ``--hostfile <(scontrol show hostnames)``."""
    try:
        if name == "-":
            text = sys.stdin.read(MOST_CHARACTERS + 1)
        else:
            with open(name, encoding="utf-8") as file:  # noqa: PTH123 - no path where it is a pipe
                text = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadUsage(
            f"--hostfile {name} cannot be read ({why})", "name a file with one host a line"
        ) from error
    if len(text) > MOST_CHARACTERS:
        raise BadUsage(f"--hostfile {name} has more than 4 MiB", "name a file with one host a line")
    return text
