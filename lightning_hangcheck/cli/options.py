"""Commands and their options, help on one screen, and the settings that options give."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.settings import (
    MAY_BE_OFF,
    NAMES,
    OFF,
    PREFIX,
    Settings,
    from_environment,
    read_option,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Decorator = Callable[[Any], Any]
BEFORE_DASHES = {"allow_interspersed_args": False}
"""Click settings for a command that another command line follows, with options of its own."""
PATIENCE = "How patient it is"
ON_HANG = "What to do on a hang"
TOLD = "Who is told"
FILES = "Where files go"
NODES = "Several nodes"
OF_RUN: dict[str, tuple[str, str | None, str]] = {
    "stall_timeout": (PATIENCE, "SECONDS", "Any silence this long is a hang"),
    "patience": (PATIENCE, "FACTOR", "Multiply all times; 2 waits twice as long"),
    "slow_after": (PATIENCE, "SECONDS", "Report steps below their pace for so long; 0: never"),
    "on_hang": (ON_HANG, "ACTION", "report, abort (exit code 75) or restart"),
    "locals": (ON_HANG, None, "Also read local variables of suspected ranks"),
    "console": (TOLD, "RANKS", "Whose lines are printed: auto, all or off"),
    "quiet": (TOLD, None, "Print only what went wrong, and errors"),
    "prometheus": (TOLD, "FILE", "Keep metrics there, for Prometheus' node-exporter"),
    "run_dir": (FILES, "DIR", "Run folder [default: a new one below hangcheck_runs]"),
    "ledger": (FILES, "FILE", "Add the run there [default: hangcheck_runs/ledger.jsonl]"),
    "nodes_dir": (NODES, "DIR", "Shared folder to meet in [default: torchrun's store]"),
    "nodes_port": (NODES, "PORT", "Or the first node's port"),
}
"""Settings that are options of `hangcheck run`, each with group, unit and help."""


class Whole(click.IntRange):
    """A whole number within bounds, under a name that users know."""

    name = "whole number"


class Option(click.Option):
    """An option that the help shows under the title of its group."""

    def __init__(self, names: Sequence[str], *, group: str, **facts: Any) -> None:  # noqa: ANN401 - click's own
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
                groups.setdefault(getattr(param, "group", "Help"), []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=26)


def examples(*lines: str) -> str:
    """Write command lines as the end of a help text."""
    return "\n".join(["\b\nExamples:", *(f"  {line}" for line in lines)])


def command(name: str, *lines: str, **facts: Any) -> Decorator:  # noqa: ANN401 - click's own
    """Make a command, with these command lines as examples."""
    return click.command(name, **{"epilog": examples(*lines), **facts})


def option(names: str, unit: str | None, text: str, group: str = "", **facts: Any) -> Decorator:  # noqa: ANN401 - click's own
    """Add an option to a command; without a unit it is a flag."""
    if unit is None:
        facts = {"is_flag": True, **facts}
    if group:
        facts |= {"cls": Option, "group": group}
    return click.option(*names.split(), metavar=unit, help=text, **facts)


def many(names: str, unit: str | None, text: str, group: str = "", **facts: Any) -> Decorator:  # noqa: ANN401 - click's own
    """Add an option that may be given several times."""
    # not False, with which click accepts the option without a value
    return option(names, unit, text, group, multiple=True, is_flag=None, **facts)


def run_dir_option(unit: str, folders: str = "Run folder", default: str = "a new one") -> Decorator:
    """Add ``--run-dir``, which the setting ``run_dir`` may give."""
    text = f"{folders} [default: {default} below hangcheck_runs]. (HANGCHECK_RUN_DIR)"
    return option("--run-dir", unit, text, envvar="HANGCHECK_RUN_DIR")


def command_behind_dashes(unit: str = "-- CMD...") -> Decorator:
    """Add the argument ``command``: the words of another command line."""
    return click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar=unit)


def refuse_empty(command: str, given: object, what: str, example: str) -> None:
    """Raise BadUsage if nothing was given."""
    if not given:
        raise BadUsage(f"{command} needs {what}", f"write {example}")


def end_on_sigterm() -> None:
    """Exit on SIGTERM, as CI systems send it, or SIGHUP, so that the current run ends too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def only_form(command: str, asked: Mapping[str, object]) -> str | None:
    """Return the one output format that was asked for, or None; BadUsage if there are several."""
    given = [name for name, value in asked.items() if value not in (None, False)]
    if len(given) > 1:
        raise BadUsage(
            f"{command} writes one form at a time",
            f"name one of {', '.join(f'--{name}' for name in sorted(asked))}",
        )
    return given[0] if given else None


def setting_options(*names: str) -> Decorator:
    """Add ``--set``, and these settings of `OF_RUN` as options."""

    def decorate(command: Any) -> Any:  # noqa: ANN401 - click's own
        text = "Any setting, such as idle_after=60; repeatable"
        command = many("--set assignments", "NAME=VALUE", text, PATIENCE)(command)
        fields = {field.name: field for field in msgspec.structs.fields(Settings)}
        for name in reversed(names):
            (group, unit, text), field = OF_RUN[name], fields[name]
            facts: dict[str, Any] = {"default": None}
            if name == "nodes_port":
                facts["type"] = Whole(1, 65_535)
            elif get_origin(field.type) is Literal:
                facts["type"] = click.Choice(get_args(field.type))
            elif field.type is float:
                facts["callback"] = positive
            if unit is not None and field.default is not None:
                shown = f"{field.default:g}" if isinstance(field.default, float) else field.default
                text += f" [default: {shown}]"
            names_of_it = f"--{name.replace('_', '-')} {name}"
            command = option(names_of_it, unit, text, group, **facts)(command)
        return command

    return decorate


def settings_from(options: Mapping[str, Any]) -> Settings:
    """Read the settings: the environment, then ``--set``, then single options; the last one counts.

    Raises:
        BadUsage: A value has the wrong type.
    """
    named = read_assignments(options.get("assignments") or ())
    given = {name: value for name, value in options.items() if value is not None}
    given.pop("assignments", None)
    settings = from_environment(os.environ)
    if {f"{PREFIX}SESSION", f"{PREFIX}VERDICT"} & os.environ.keys():
        # in a run, or in what it starts on a hang: that run's folder is not for this command
        settings = msgspec.structs.replace(settings, run_dir=None)
    return msgspec.structs.replace(settings, **(named | given))


def positive(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Read a finite number above 0, or a word that gives 0; else BadParameter with an example."""
    if text is None or (option.name in MAY_BE_OFF and text.lower() in OFF):
        return None if text is None else 0.0
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 < number < float("inf"):
        also = f", {', '.join(OFF[:-1])} or {OFF[-1]}" if option.name in MAY_BE_OFF else ""
        sentence = f"{text!r} is not a number above 0{also}; write for example 30"
        raise click.BadParameter(sentence, param=option)
    return number


def read_assignments(assignments: Iterable[str]) -> dict[str, object]:
    """Read the ``NAME=VALUE`` of each ``--set``; BadUsage if one is invalid."""
    values: dict[str, object] = {}
    for assignment in assignments:
        name, parted, text = assignment.partition("=")
        known = name.strip().lower().replace("-", "_").removeprefix(PREFIX.lower())
        if not parted:
            raise BadUsage(
                f"--set {assignment} has no value", "write for example --set idle_after=60"
            )
        if known not in NAMES:
            from difflib import get_close_matches  # hardly ever needed

            near = get_close_matches(known, NAMES, n=3, cutoff=0.5)
            way_out = f"did you mean {' or '.join(near)}?" if near else "see docs/settings.md"
            raise BadUsage(f"--set {name}: there is no such setting", way_out)
        values[known] = read_option(known, text.strip(), f"--set {known}")
    return values
