"""Every setting, its default and its meaning, in one table.

A setting ``idle_after`` is set by ``HANGCHECK_IDLE_AFTER`` or ``--set idle_after=60``; those that
most jobs need are options of their own, too (`cli.options`). docs/settings.md is made from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.model.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

PREFIX = "HANGCHECK_"
SHARED_BY_NODES = "HANGCHECK_NODES_TOKEN"
"""Variable with a secret, so it is no option; see `nodes.places.sealed_place`."""
LEAST_SECRET = 16
"""Characters of it: `openssl rand -hex 16` has twice as many."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
LoggerFailure = Literal["raise", "offline", "none"]


class Settings(Limits, frozen=True, kw_only=True):
    """All settings of a job, those of the patience table included; `MEANINGS` says what each is."""

    patience: float = 1.0
    slow_after: float = 180.0
    look_after: float = 2.0
    poll_interval: float = 0.25
    probe_timeout: float = 5.0
    locals: bool = False
    on_hang: Literal["report", "abort", "restart"] = "report"
    abort_grace: float = 10.0
    console: Literal["auto", "all", "off"] = "auto"
    quiet: bool = False
    steps: bool = False
    start_report: Literal["differences", "off"] = "differences"
    prometheus: str | None = None
    run_dir: str | None = None
    ledger: str | None = None
    price: str | None = None
    if_done: Literal["ask", "reuse", "rerun"] = "ask"
    nodes_dir: str | None = None
    nodes_port: Port | None = None
    meeting_timeout: float = 60.0
    lock_timeout: float = 300.0
    logger_init_timeout: float = 60.0
    logger_finish_timeout: float = 30.0
    logger_on_failure: LoggerFailure = "raise"
    disable: bool = False


class Meaning(NamedTuple):
    """What a setting does, for people.

    Attributes:
        example: A value to write where the default is none.
    """

    group: str
    unit: str
    text: str
    example: str = ""


PATIENCE = "Patience: seconds since the last progress"
LOOKS = "How it looks"
ON_HANG = "On a hang"
TOLD = "What is shown"
FILES = "Where files go"
NODES = "Several nodes"
GUARDS = "In the script"

MEANINGS: dict[str, Meaning] = {
    "patience": Meaning(
        PATIENCE, "factor", "multiplies every figure of this table: 2 waits twice as long"
    ),
    "suspect_proven_after": Meaning(
        PATIENCE, "seconds", "a wait that nobody can end, or a rank that is gone, is suspected"
    ),
    "proven_after": Meaning(PATIENCE, "seconds", "the same is called a hang, or the rank dead"),
    "suspect_person_after": Meaning(
        PATIENCE, "seconds", "what a person must end (a stopped process, terminal input): suspected"
    ),
    "person_after": Meaning(PATIENCE, "seconds", "the same is called a hang"),
    "suspect_idle_after": Meaning(
        PATIENCE,
        "seconds",
        "what only the job itself could end, and whoever could is idle, is suspected",
    ),
    "idle_after": Meaning(PATIENCE, "seconds", "the same is called a hang"),
    "suspect_outside_after": Meaning(
        PATIENCE,
        "seconds",
        "a wait on something external (a remote end, a file, a timer) is suspected; it is called "
        "a hang after `stall_timeout`",
    ),
    "suspect_busy_after": Meaning(
        PATIENCE,
        "seconds",
        "a computation is suspected; one of unknown pace only if it goes in circles",
    ),
    "busy_floor": Meaning(
        PATIENCE, "seconds", "the earliest that a computation of known pace is called a hang"
    ),
    "busy_factor": Meaning(
        PATIENCE,
        "number",
        "the same as a multiple of the longest pause in that place; the larger of both counts",
    ),
    "suspect_absent_after": Meaning(
        PATIENCE, "seconds", "ranks that were announced and have not come are suspected"
    ),
    "absent_after": Meaning(
        PATIENCE, "seconds", "the same is called a hang where the launcher proves they never will"
    ),
    "stall_timeout": Meaning(
        PATIENCE,
        "seconds",
        "everything else is called a hang: waits on something external, computations of unknown "
        "pace, ranks that have not come, what nothing explains",
    ),
    "slow_after": Meaning(
        LOOKS,
        "seconds",
        "steps several times as long as ever are reported as slow, which is no hang; `0`, `none` "
        "or `off`: never",
    ),
    "look_after": Meaning(LOOKS, "seconds", "silence after which the first evidence is taken"),
    "poll_interval": Meaning(LOOKS, "seconds", "time between two readings of the heartbeats"),
    "probe_timeout": Meaning(LOOKS, "seconds", "time limit of one probe of one process"),
    "locals": Meaning(
        LOOKS, "", "also read local variables of ranks that a suspicion names; secrets are hidden"
    ),
    "on_hang": Meaning(
        ON_HANG,
        "",
        "`report` only; `abort` ends the job with exit code 75; `restart` ends its ranks so that "
        "torchrun starts them again",
    ),
    "abort_grace": Meaning(
        ON_HANG, "seconds", "time between SIGTERM and SIGKILL when a hung job is ended"
    ),
    "console": Meaning(
        TOLD,
        "",
        "which ranks print their lines; `auto`: all up to 16 ranks, above that rank 0 and ranks "
        "in trouble",
    ),
    "quiet": Meaning(TOLD, "", "print only the verdict on what went wrong, and errors"),
    "steps": Meaning(TOLD, "", "print a line for every named step and item of a tracked loop"),
    "start_report": Meaning(
        TOLD, "", "show on the console what differs between ranks at their start"
    ),
    "prometheus": Meaning(
        TOLD, "file", "keep metrics for node-exporter there; none without it", "job.prom"
    ),
    "run_dir": Meaning(
        FILES, "folder", "the run folder; without it a new one below `hangcheck_runs`", "my-run"
    ),
    "ledger": Meaning(
        FILES, "file", "what ran; without it `hangcheck_runs/ledger.jsonl`", "ledger.jsonl"
    ),
    "price": Meaning(
        FILES, "price", "of a rank for an hour: `0.89/h`, or by GPU model `A100=1.89/h`", "0.89/h"
    ),
    "if_done": Meaning(
        FILES, "", "the answer where a phase that is done asks whether to run again"
    ),
    "nodes_dir": Meaning(
        NODES,
        "folder",
        "where the nodes' sidecars meet; without it the store that torchrun serves",
        "/shared/meet",
    ),
    "nodes_port": Meaning(
        NODES,
        "port",
        f"where no launcher serves a store, the first node serves one; needs `{SHARED_BY_NODES}`",
        "29511",
    ),
    "meeting_timeout": Meaning(GUARDS, "seconds", "ranks wait that long for each other"),
    "lock_timeout": Meaning(GUARDS, "seconds", "`locked` waits that long for another process"),
    "logger_init_timeout": Meaning(GUARDS, "seconds", "time for creating the logger's run"),
    "logger_finish_timeout": Meaning(GUARDS, "seconds", "time for finishing it, upload included"),
    "logger_on_failure": Meaning(
        GUARDS, "", "where it cannot be created: raise on every rank, go on offline, or with none"
    ),
    "disable": Meaning(GUARDS, "", "everything becomes a no-op"),
}
"""By name, in the order of the page."""

MAY_BE_OFF = frozenset({"slow_after"})
"""Durations of which 0 means never."""
OFF = ("0", "none", "off")

VARIABLES = frozenset(PREFIX + option.name.upper() for option in msgspec.structs.fields(Settings))
"""Of all settings. Other variables with our prefix are what our processes tell each other."""

ONLY_OF_RUN = frozenset(PREFIX + name for name in ("NOTIFY", "ON_HANG_EXEC"))
"""Of options that `hangcheck run` keeps to itself: they may hold secrets."""


def from_environment(
    environment: Mapping[str, str], on_refusal: Callable[[str], object] | None = None
) -> Settings:
    """Read the settings that the environment names.

    Args:
        environment: Of this process.
        on_refusal: Told of each value that cannot be used, where its default serves instead.

    Raises:
        BadUsage: A variable's value is not of its kind; the sentence names it and what to write.
    """
    values: dict[str, object] = {}
    for option in msgspec.structs.fields(Settings):
        text = environment.get(PREFIX + option.name.upper())
        try:
            if text:
                values[option.name] = read_option(option.name, text)
        except BadUsage as refusal:
            if on_refusal is None:
                raise
            on_refusal(f"{refusal}; taking the default, {option.default}")
    return msgspec.convert(values, Settings)


def read_assignments(assignments: Iterable[str]) -> dict[str, object]:
    """Read what ``--set NAME=VALUE`` was given, several times.

    Raises:
        BadUsage: One has no such form, names no setting, or a value that cannot be used.
    """
    values: dict[str, object] = {}
    for assignment in assignments:
        name, parted, text = assignment.partition("=")
        known = name.strip().lower().replace("-", "_").removeprefix(PREFIX.lower())
        if not parted:
            raise BadUsage(
                f"--set {assignment} has no value", "write for example --set idle_after=60"
            )
        if known not in MEANINGS:
            from difflib import get_close_matches  # a rank does not ask

            near = get_close_matches(known, MEANINGS, n=3, cutoff=0.5)
            way_out = f"did you mean {' or '.join(near)}?" if near else "see docs/settings.md"
            raise BadUsage(f"--set {name}: there is no such setting", way_out)
        values[known] = read_option(known, text.strip(), f"--set {known}")
    return values


def read_option(name: str, text: str, said: str = "") -> object:
    """Convert one setting's text to its value.

    Raises:
        BadUsage: The text is not of the setting's kind, or is a number that cannot be a duration.
    """
    said = said or f"{PREFIX}{name.upper()}"
    option = next(field for field in msgspec.structs.fields(Settings) if field.name == name)
    if name in MAY_BE_OFF and text.lower() in OFF:
        return 0.0
    plain = {"1": "true", "0": "false", "yes": "true", "no": "false"}.get(text.lower(), text)
    try:
        value = msgspec.convert(plain if option.type is bool else text, option.type, strict=False)
    except msgspec.ValidationError as error:
        raise BadUsage(
            f"{said}={text!r} cannot be used ({error})",
            f"write for example {said}={_write(option)}",
        ) from error
    if isinstance(value, float) and not 0 < value < float("inf"):
        raise BadUsage(
            f"{said}={text!r} is no positive number", f"write for example {said}={_write(option)}"
        )
    return value


def _write(option: msgspec.structs.FieldInfo) -> str:
    """Write a value that can be used."""
    default = option.default
    known = f"{default:g}" if isinstance(default, float) else _text(default)
    return MEANINGS[option.name].example or known


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else f"{value}"


def environment_with(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return an environment in which every setting is as given, whatever it was before.

    So all processes of a job read the same values, and each reads one that can be used.
    """
    ours = VARIABLES | ONLY_OF_RUN
    kept = {name: value for name, value in environment.items() if name not in ours}
    return kept | to_environment(settings)


def to_environment(settings: Settings) -> dict[str, str]:
    """Write the settings that differ from their defaults as environment variables."""
    return {
        PREFIX + option.name.upper(): _text(getattr(settings, option.name))
        for option in msgspec.structs.fields(Settings)
        if getattr(settings, option.name) != option.default
    }
