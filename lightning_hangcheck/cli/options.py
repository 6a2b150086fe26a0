"""Options as people read them: in groups, a screen at most; and what settings they come to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.settings import (
    LEAST_SECRET,
    MAY_BE_OFF,
    OFF,
    SHARED_BY_NODES,
    Settings,
    from_environment,
    read_assignments,
)
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Command = TypeVar("Command", bound="Callable[..., object]")
FOLDER_LIMIT_S = 1.0
OPTIONS = "Help"
PATIENCE = "How patient it is"
ON_HANG = "What to do on a hang"
TOLD = "Who is told"
FILES = "Where files go"
NODES = "Several nodes"
SETTINGS_NOTE = (
    "Each option has a variable: HANGCHECK_STALL_TIMEOUT and so on. docs/settings.md lists all "
    "settings."
)
OF_RUN: dict[str, tuple[str, str | None, str]] = {
    "stall_timeout": (PATIENCE, "SECONDS", "Any silence this long is a hang"),
    "patience": (PATIENCE, "FACTOR", "Multiply all times; 2 waits twice as long"),
    "slow_after": (PATIENCE, "SECONDS", "Report steps this long below pace; 0: never"),
    "on_hang": (ON_HANG, "ACTION", "report, abort (exit code 75) or restart"),
    "locals": (ON_HANG, None, "Also read local variables of suspected ranks"),
    "console": (TOLD, "RANKS", "Whose lines are printed: auto, all or off"),
    "quiet": (TOLD, None, "Print only what went wrong, and errors"),
    "prometheus": (TOLD, "FILE", "Keep metrics for node-exporter there"),
    "run_dir": (FILES, "DIR", "Run folder [default: a new one below hangcheck_runs]"),
    "ledger": (FILES, "FILE", "What ran [default: hangcheck_runs/ledger.jsonl]"),
    "nodes_dir": (NODES, "DIR", "Where nodes meet [default: torchrun's store]"),
    "nodes_port": (NODES, "PORT", "Serve a store for them there"),
}
"""Settings that are options of `hangcheck run`, each with group, unit and help."""


class Option(click.Option):
    """An option that stands under the title of its group."""

    def __init__(self, names: Sequence[str], *, group: str = OPTIONS, **facts: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(names, **facts)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group, in the order of the options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(param, "group", OPTIONS), []).append(record)
        for title in sorted(groups, key=lambda title: title == OPTIONS):
            with formatter.section(title):
                formatter.write_dl(groups[title], col_max=26)


def run_options(command: Command) -> Command:
    """Give a command the settings that are options; its function takes them by name."""
    command = set_option(command)
    for name, (group, unit, text) in reversed(OF_RUN.items()):
        field = next(one for one in msgspec.structs.fields(Settings) if one.name == name)
        command = _option(field, group, unit, text)(command)
    return command


def patience_options(command: Command) -> Command:
    """Give a command ``--patience`` and ``--set`` alone."""
    command = set_option(command)
    field = next(one for one in msgspec.structs.fields(Settings) if one.name == "patience")
    return _option(field, PATIENCE, "FACTOR", "Multiply all times; 2 waits twice as long")(command)


def set_option(command: Command) -> Command:
    """Give a command ``--set NAME=VALUE``."""
    return click.option(
        "--set",
        "assignments",
        cls=Option,
        group=PATIENCE,
        multiple=True,
        metavar="NAME=VALUE",
        help="Any setting, such as idle_after=60; repeatable",
    )(command)


def settings_from(options: Mapping[str, object]) -> Settings:
    """Read the settings: the environment's, then those of ``--set``, then options of their own.

    Args:
        options: By name; None where the option was not given.

    Raises:
        BadUsage: A value is not of its kind.
    """
    assignments = options.get("assignments") or ()
    given = read_assignments(assignments) if isinstance(assignments, tuple) else {}
    given |= {
        name: value
        for name, value in options.items()
        if value is not None and name != "assignments"
    }
    return msgspec.structs.replace(from_environment(os.environ), **given)


def _option(
    field: msgspec.structs.FieldInfo, group: str, unit: str | None, text: str
) -> Callable[[Command], Command]:
    name = f"--{field.name.replace('_', '-')}"
    if field.type is bool:
        return click.option(
            name, field.name, cls=Option, group=group, is_flag=True, default=None, help=text
        )
    default = "" if field.default is None else f" [default: {_shown(field.default)}]"
    return click.option(
        name,
        field.name,
        cls=Option,
        group=group,
        type=_kind(field),
        callback=_reader(field),
        metavar=unit,
        default=None,
        help=f"{text}{default}",
    )


def _reader(
    field: msgspec.structs.FieldInfo,
) -> Callable[[click.Context, click.Option, str | None], float | None] | None:
    if field.type is not float:
        return None
    return positive_or_off if field.name in MAY_BE_OFF else positive


def positive_or_off(context: click.Context, option: click.Option, text: str | None) -> float | None:
    """Read the same, or 0, none, off."""
    return 0.0 if text is not None and text.lower() in OFF else positive(context, option, text)


def _kind(field: msgspec.structs.FieldInfo) -> click.IntRange | click.Choice[str] | type[str]:
    if field.name == "nodes_port":
        return click.IntRange(1, 65_535)
    return click.Choice(get_args(field.type)) if get_origin(field.type) is Literal else str


def positive(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Read a finite number above 0, or say what to write instead."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 < number < float("inf"):
        sentence = f"{text!r} is no positive number; write for example 30"
        raise click.BadParameter(sentence, param=option)
    return number


def refuse_without_folder(option: str, file: str | None) -> None:
    """Refuse a file to be written at the end, or again and again, whose folder is not there.

    Raises:
        BadUsage: It is not; of storage that does not answer nothing is said.
    """
    if file is None:
        return
    try:
        there = within(FOLDER_LIMIT_S, Path(file).absolute().parent.is_dir)
    except NoAnswer:
        return
    if not there:
        raise BadUsage(f"{option} {file}: its folder is not there", "make it, or name another file")


def refuse_without_secret(settings: Settings) -> None:
    """Refuse a port to be served without what keeps strangers from being heard there.

    Raises:
        BadUsage: The environment has no secret of that length.
    """
    if settings.nodes_port is not None and len(os.environ.get(SHARED_BY_NODES, "")) < LEAST_SECRET:
        raise BadUsage(
            f"--nodes-port needs a secret of {LEAST_SECRET} characters or more, the same on all "
            "nodes",
            f"export {SHARED_BY_NODES}=$(openssl rand -hex 16) where the job is started",
        )


def _shown(default: object) -> str:
    return f"{default:g}" if isinstance(default, float) else f"{default}"
