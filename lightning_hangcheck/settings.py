"""Every option, its environment variable and its default, in one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "HANGCHECK_"
SHARED_BY_NODES = "HANGCHECK_NODES_TOKEN"
"""Variable with a secret, so it is no option; see `nodes.places.sealed_place`."""
LEAST_SECRET = 16
"""Characters of it: `openssl rand -hex 16` has twice as many."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
LoggerFailure = Literal["raise", "offline", "none"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All options. A field ``stall_timeout`` is set by ``HANGCHECK_STALL_TIMEOUT``.

    Attributes:
        run_dir: Run folder; None for ``hangcheck_runs/<UTC time>-<short id>`` below the working
            folder.
        stall_timeout: Seconds of silence after which a hang is called that something outside could
            end, that may be a computation of unknown pace, or that nothing explains.
        on_hang: What `hangcheck run` does on a hang: only report, end the job, or end its ranks so
            that torchrun starts them again; where it does not, end the job.
        console: ``auto`` prints every rank up to 16 ranks, then rank 0 and ranks in trouble;
            ``all``; ``off``.
        disable: Everything becomes a no-op.
        start_report: Whether each rank says at its start, without a call of the script, what it
            stands in: all in its journal, and on the console what ``differences`` there are.
        quiet: Print nothing but the verdict on what went wrong, and errors.
        steps: Print a line for every step and every item of a tracked loop.
        locals: Read local variables too, of the ranks that a suspicion names; secrets are hidden.
        suspect_proven_after: Seconds of silence after which what nobody can end is suspected.
        proven_after: The same for calling it a hang.
        suspect_person_after: Seconds after which what only a person can end is suspected.
        person_after: The same for calling it a hang.
        suspect_idle_after: Seconds after which what only the job itself can end is suspected, while
            whoever could end it is idle.
        idle_after: The same for calling it a hang.
        suspect_outside_after: Seconds after which what something outside can end is suspected.
        suspect_busy_after: Seconds after which a computation is suspected.
        busy_floor: Least seconds before a computation of known pace is called a hang.
        busy_factor: The same as a multiple of the longest pause of that place.
        suspect_absent_after: Seconds after which ranks that were announced and have not come are
            suspected.
        absent_after: Seconds after which they are called a hang where they can never come.
        look_after: Seconds of silence after which the first cheap evidence is taken.
        poll_interval: Seconds between two readings of the pages.
        probe_timeout: Seconds that one probe of one process may take.
        abort_grace: Seconds between SIGTERM and SIGKILL when a hung job is ended.
        meeting_timeout: Seconds that ranks wait for each other at a guard.
        lock_timeout: Seconds that a rank waits for a file lock that another process holds.
        logger_init_timeout: Seconds that the guarded logger may take to create its run.
        logger_finish_timeout: Seconds that finishing that run may take, upload included.
        ledger: File that tells what ran; None for ``hangcheck_runs/ledger.jsonl`` below the working
            folder.
        slow_after: Seconds for which a rank's steps must take several times as long as ever before
            it is told as slow; 0 to watch no pace.
        prometheus: File in which the sidecar keeps metrics for node-exporter; None for none.
        if_done: The answer where a phase that is done would ask whether to run again; ``ask``
            leaves it to a person.
        nodes_dir: Folder that all nodes of the job see, in which their sidecars meet; None for the
            store that torchrun serves.
        nodes_port: Where no launcher serves a store, the first node's sidecar serves one on this
            port, and the other nodes' connect to it; None for none.
        price: What a rank costs for an hour, for the questions of phases and `hangcheck ledger`:
            ``0.89/h``, or by GPU model ``A100=1.89/h``.
        logger_on_failure: What to do where the run cannot be created: ``raise`` on every rank, go
            on ``offline``, or with ``none``.
    """

    run_dir: str | None = None
    stall_timeout: float = 300.0
    on_hang: Literal["report", "abort", "restart"] = "report"
    console: Literal["auto", "all", "off"] = "auto"
    disable: bool = False
    start_report: Literal["differences", "off"] = "differences"
    quiet: bool = False
    steps: bool = False
    locals: bool = False
    suspect_proven_after: float = 3.0
    proven_after: float = 5.0
    suspect_person_after: float = 3.0
    person_after: float = 10.0
    suspect_idle_after: float = 5.0
    idle_after: float = 30.0
    suspect_outside_after: float = 10.0
    suspect_busy_after: float = 10.0
    busy_floor: float = 120.0
    busy_factor: float = 20.0
    suspect_absent_after: float = 10.0
    absent_after: float = 15.0
    look_after: float = 2.0
    poll_interval: float = 0.25
    probe_timeout: float = 5.0
    abort_grace: float = 10.0
    meeting_timeout: float = 60.0
    lock_timeout: float = 300.0
    logger_init_timeout: float = 60.0
    logger_finish_timeout: float = 30.0
    logger_on_failure: LoggerFailure = "raise"
    slow_after: float = 180.0
    ledger: str | None = None
    prometheus: str | None = None
    if_done: Literal["ask", "reuse", "rerun"] = "ask"
    price: str | None = None
    nodes_dir: str | None = None
    nodes_port: Port | None = None


MAY_BE_OFF = frozenset({"slow_after"})
"""Durations of which 0 means never."""
OFF = ("0", "none", "off")

VARIABLES = frozenset(PREFIX + option.name.upper() for option in msgspec.structs.fields(Settings))
"""Of all options. Other variables with our prefix are what our processes tell each other."""

ONLY_OF_RUN = frozenset(PREFIX + name for name in ("NOTIFY", "ON_HANG_EXEC"))
"""Of options that `hangcheck run` keeps to itself: they may hold secrets, or are for it alone."""


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the options that the environment sets.

    Raises:
        BadUsage: A variable's value is not of its kind; the sentence names it and what to write.
    """
    values: dict[str, object] = {}
    for option in msgspec.structs.fields(Settings):
        text = environment.get(PREFIX + option.name.upper())
        if text:
            values[option.name] = read_option(option.name, text)
    return msgspec.convert(values, Settings)


def read_option(name: str, text: str) -> object:
    """Convert one option's text to its value.

    Raises:
        BadUsage: The text is not of the option's kind, or is a number that cannot be a duration.
    """
    option = next(field for field in msgspec.structs.fields(Settings) if field.name == name)
    if name in MAY_BE_OFF and text.lower() in OFF:
        return 0.0
    plain = {"1": "true", "0": "false", "yes": "true", "no": "false"}.get(text.lower(), text)
    try:
        value = msgspec.convert(plain if option.type is bool else text, option.type, strict=False)
    except msgspec.ValidationError as error:
        raise BadUsage(
            f"{PREFIX}{name.upper()}={text!r} cannot be used ({error})",
            f"write for example {PREFIX}{name.upper()}={_example(option)}",
        ) from error
    if isinstance(value, float) and not 0 < value < float("inf"):
        raise BadUsage(
            f"{PREFIX}{name.upper()}={text!r} is no positive number",
            f"write for example {PREFIX}{name.upper()}={_write(option.default)}",
        )
    return value


def _example(option: msgspec.structs.FieldInfo) -> str:
    return "29511" if option.name == "nodes_port" else _write(option.default)


def _write(value: object) -> str:
    if value is None:
        return "my-run"
    return str(int(value)) if isinstance(value, bool) else f"{value}"


def environment_with(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return an environment in which every option is as in the settings, whatever it was before.

    So all processes of a job read the same values, and each reads one that can be used.
    """
    ours = VARIABLES | ONLY_OF_RUN
    kept = {name: value for name, value in environment.items() if name not in ours}
    return kept | to_environment(settings)


def to_environment(settings: Settings) -> dict[str, str]:
    """Write the options that differ from their defaults as environment variables."""
    return {
        PREFIX + option.name.upper(): _write(getattr(settings, option.name))
        for option in msgspec.structs.fields(Settings)
        if getattr(settings, option.name) != option.default
    }
