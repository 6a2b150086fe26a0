"""The option block of every command that watches, made from the Settings table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args, get_origin

import click
import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.settings import (
    LEAST_SECRET,
    MAY_BE_OFF,
    OFF,
    PREFIX,
    SHARED_BY_NODES,
    Settings,
    from_environment,
)
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Command = TypeVar("Command", bound="Callable[..., object]")
NOT_AN_OPTION = "disable"
FOLDER_LIMIT_S = 1.0


class _Words(NamedTuple):
    """How the help speaks of one setting."""

    unit: str | None
    help: str


WORDS: dict[str, _Words] = {
    "run_dir": _Words("DIR", "Run folder [default: a new one below hangcheck_runs]."),
    "stall_timeout": _Words("SECONDS", "Silence after which anything else is a hang."),
    "on_hang": _Words(
        None, "On a hang report, end the job (exit code 75), or have torchrun restart."
    ),
    "console": _Words(None, "Which ranks print console lines; auto: all up to 16 ranks."),
    "start_report": _Words(None, "Show what differs between ranks at their start, or not."),
    "quiet": _Words(None, "Print nothing but the verdict on what went wrong, and errors."),
    "steps": _Words(None, "Print a line for every named step and every item of a tracked loop."),
    "locals": _Words(None, "Read local variables too, of ranks that a suspicion names."),
    "suspect_proven_after": _Words("SECONDS", "Silence: what nobody can end is suspected."),
    "proven_after": _Words("SECONDS", "Silence: what nobody can end is a hang."),
    "suspect_person_after": _Words("SECONDS", "Silence: what a person must end is suspected."),
    "person_after": _Words("SECONDS", "Silence: what a person must end is a hang."),
    "suspect_idle_after": _Words("SECONDS", "Silence: what the idle job must end is suspected."),
    "idle_after": _Words("SECONDS", "Silence: what the idle job must end is a hang."),
    "suspect_outside_after": _Words("SECONDS", "Silence: what others can end is suspected."),
    "suspect_busy_after": _Words("SECONDS", "Silence: a computation is suspected."),
    "busy_floor": _Words("SECONDS", "Least silence: a computation of known pace is a hang."),
    "busy_factor": _Words("NUMBER", "The same, as a multiple of the longest pause there."),
    "suspect_absent_after": _Words("SECONDS", "Silence: ranks that have not come are suspected."),
    "absent_after": _Words("SECONDS", "Silence: ranks that can never come are a hang."),
    "look_after": _Words("SECONDS", "Silence after which the first cheap evidence is taken."),
    "poll_interval": _Words("SECONDS", "Time between two readings of the heartbeats."),
    "probe_timeout": _Words("SECONDS", "Time limit of one probe of one process."),
    "abort_grace": _Words("SECONDS", "Time between SIGTERM and SIGKILL when a hung job is ended."),
    "meeting_timeout": _Words("SECONDS", "Time that ranks wait for each other at a guard."),
    "lock_timeout": _Words("SECONDS", "Time that `locked` waits for another process."),
    "logger_init_timeout": _Words("SECONDS", "Time for creating the guarded logger's run."),
    "logger_finish_timeout": _Words("SECONDS", "Time for finishing that run, upload included."),
    "logger_on_failure": _Words(None, "Where the run cannot be created: error, or go on so."),
    "slow_after": _Words("SECONDS", "Time of steps far below their pace until told; 0: never."),
    "ledger": _Words("FILE", "What ran [default: hangcheck_runs/ledger.jsonl]."),
    "prometheus": _Words("FILE", "Keep metrics for node-exporter there, such as /.../job.prom."),
    "if_done": _Words(None, "The answer where a phase asks whether to run again."),
    "price": _Words("PRICE", "Of a rank for an hour, for those questions: 0.89/h."),
    "nodes_dir": _Words("DIR", "Where nodes meet [default: torchrun's store, or below --run-dir]."),
    "nodes_port": _Words("PORT", "Serve a store for them there, where no launcher does."),
}


def settings_options(command: Command) -> Command:
    """Give a command one option for each setting; its function takes them as keyword arguments."""
    for field in reversed(msgspec.structs.fields(Settings)):
        if field.name != NOT_AN_OPTION:
            command = _option(field)(command)
    return command


def settings_from(options: Mapping[str, object]) -> Settings:
    """Read the settings: the environment's, overridden by the options that were given.

    Args:
        options: By field name; None where the option was not given.

    Raises:
        BadUsage: An environment variable's value is not of its kind.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return msgspec.structs.replace(from_environment(os.environ), **given)


def _option(field: msgspec.structs.FieldInfo) -> Callable[[Command], Command]:
    words = WORDS[field.name]
    default = "" if field.default is None else f" [default: {_shown(field.default)}]"
    variable = f"{PREFIX}{field.name.upper()}"
    name = f"--{field.name.replace('_', '-')}"
    if field.type is bool:
        shown = f"{words.help} ({variable}=1)"
        return click.option(name, field.name, is_flag=True, default=None, help=shown)
    return click.option(
        name,
        field.name,
        type=_kind(field),
        callback=_reader(field),
        metavar=words.unit,
        default=None,
        help=f"{words.help}{default} ({variable})",
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
