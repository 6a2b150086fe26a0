"""The door of the command line: every error leaves here as one line, never as a traceback."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli import commands
from lightning_hangcheck.cli.showing import say
from lightning_hangcheck.errors import HangcheckError
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMMANDS = tuple(file.removesuffix("_command") for file in commands.__all__)
BAD_USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells do
EPILOG = """\b
Examples:
  hangcheck run -- torchrun --nproc_per_node=2 train.py
  hangcheck attach --pid 4711
  hangcheck report
"""


class CommandsByName(Mapping[str, click.Command]):
    """All commands; each is imported when it is asked for, so that none pays for the others."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        file = import_module(f"{commands.__name__}.{name}_command")
        command: click.Command = getattr(file, name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@click.group(epilog=EPILOG, no_args_is_help=False, commands=CommandsByName())
@click.version_option(__version__, message="hangcheck %(version)s")
def hangcheck() -> None:
    """Find out which rank of a distributed PyTorch Lightning run hangs, at which line, and why."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # names of functions and files may hold what the terminal's encoding has no sign for
            stream.reconfigure(errors="backslashreplace")
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: Behind the program's name.

    Returns:
        The exit code; an error that a user can cause was said in one line on stderr.
    """
    try:
        outcome = hangcheck.main(list(arguments), prog_name="hangcheck", standalone_mode=False)
    except HangcheckError as error:
        return _say(str(error), error.exit_code)
    except click.UsageError as error:
        return _say(f"{_clause(error)}; {_way_out(error)}", BAD_USAGE)
    except click.Abort:
        return INTERRUPTED
    return outcome if isinstance(outcome, int) else 0


def _clause(error: click.UsageError) -> str:
    """Click's message as a clause: one line, no capital, no full stop."""
    message = " ".join(error.format_message().split()).rstrip(".")
    return message[:1].lower() + message[1:]


def _way_out(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "hangcheck"
    return f"see: {path} --help"


def _say(sentence: str, exit_code: int) -> int:
    say(sentence)
    return exit_code
