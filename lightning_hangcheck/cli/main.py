"""Entry point of the command line: a user's error is printed as one line, not as a traceback."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import BAD_USAGE, INTERRUPTED, say
from lightning_hangcheck.errors import HangcheckError
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTPUT_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
TENSES: dict[str, dict[str, str]] = {
    "Before a run": {
        "doctor": "check the machine, the launch and the storage",
        "lint": "find in source code what would make ranks diverge",
        "rehearse": "run it on 2 CPU ranks and provoke hangs",
        "smoke": "run it at three small sizes; name the first that hangs",
        "plan": "will this model fit, where, and how fast",
    },
    "While it runs": {
        "run": "start it unchanged and watch every rank",
        "watch": "a live view from another terminal",
        "report": "the newest verdict, as text, page or JSON",
    },
    "It is stuck": {
        "attach": "diagnose a job started without hangcheck",
        "merge": "join what several nodes saw into one verdict",
    },
    "It is dead": {
        "postmortem": "explain it from logs, dumps and run folders",
        "report": "the last verdict of a run",
    },
    "Also": {
        "demo": "see a verdict within 10 s, without a job",
        "explain": "what a cause means and what helps",
        "ledger": "what ran, how long, and what it cost",
    },
}
"""The commands, grouped by when they help."""
COMMANDS = sorted({name for words in TENSES.values() for name in words})
BESIDE = {"demo": "run", "merge": "attach", "smoke": "rehearse", "watch": "report"}
"""Small commands, and the command in whose file each is."""


class ByTense(click.Group):
    """Lists commands in the order in which users need them; imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        return command_named(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group."""
        widest = max(map(len, COMMANDS))
        for title, words in TENSES.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), short) for name, short in words.items()])


def command_named(name: str) -> click.Command:
    """Import a command by its name."""
    module = import_module(f"lightning_hangcheck.cli.{BESIDE.get(name, name)}_command")
    command: click.Command = getattr(module, name)
    return command


@click.group(
    cls=ByTense,
    invoke_without_command=True,
    no_args_is_help=False,
    epilog=cli.examples(
        "hangcheck demo",
        "hangcheck run -- torchrun --nproc_per_node=2 train.py",
        "hangcheck attach --pid 4711",
    ),
)
@click.version_option(__version__, message="hangcheck %(version)s")
@click.pass_context
def hangcheck(context: click.Context) -> None:
    """Find out which rank of a distributed PyTorch Lightning run hangs, at which line, and why."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line and leave with its exit code."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed: else a file of ours would get its number
            descriptor = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(descriptor, "w" if number else "r"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # names of functions and files may have characters that the terminal cannot encode
            stream.reconfigure(errors="backslashreplace")
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run one command.

    Returns:
        The exit code. An error that a user can cause is printed in one line on stderr.
    """
    try:
        Path.cwd()
    except OSError as error:
        say(f"the working folder cannot be read ({error.strerror}); change to one that is there")
        return BAD_USAGE
    try:
        outcome = hangcheck.main(list(arguments), prog_name="hangcheck", standalone_mode=False)
    except HangcheckError as error:
        say(str(error))
        return error.exit_code
    except click.UsageError as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        named = " ".join(
            ["hangcheck", *(argument for argument in arguments[:1] if argument in COMMANDS)]
        )
        path = error.ctx.command_path if error.ctx else named
        say(f"{message[:1].lower()}{message[1:]}; see: {path} --help")
        return BAD_USAGE
    except click.Abort:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in OUTPUT_REFUSED or error.filename is not None:
            raise
        say(f"the output cannot be written ({error.strerror}); send it elsewhere")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's buffer
        return BAD_USAGE
    return outcome if isinstance(outcome, int) else 0
