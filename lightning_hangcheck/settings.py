"""All settings with their defaults; docs/settings.md explains each.

A setting ``idle_after`` is set by ``HANGCHECK_IDLE_AFTER`` or ``--set idle_after=60``. Settings
that most jobs need have options of their own, too (`cli.options`).
"""

# annotations as they are, not as text: a rank would take 2 ms to read those of all settings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.model.limits import Limits

PREFIX = "HANGCHECK_"
SHARED_BY_NODES = "HANGCHECK_NODES_TOKEN"
"""Variable with a secret, so it is no option; `watch.other_nodes` reads it."""
LEAST_SECRET = 16
"""Characters that the secret must have: `openssl rand -hex 16` writes twice as many."""
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
LoggerFailure = Literal["raise", "offline", "none"]


class Settings(Limits, frozen=True, kw_only=True):
    """All settings of a job, including those of the patience table."""

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


NAMES = Settings.__struct_fields__
DEFAULTS = Settings()
EXAMPLES = {
    "prometheus": "job.prom",
    "run_dir": "my-run",
    "ledger": "ledger.jsonl",
    "price": "0.89/h",
    "nodes_dir": "/shared/meet",
    "nodes_port": "29511",
}
"""Values to show as an example if the default is none."""
MAY_BE_OFF = frozenset({"slow_after"})
"""Durations for which 0 means never."""
OFF = ("0", "none", "off")

VARIABLES = frozenset(PREFIX + name.upper() for name in NAMES)
"""Variables of all settings. Other variables with our prefix pass facts between our processes."""

ONLY_OF_RUN = frozenset(PREFIX + name for name in ("NOTIFY", "ON_HANG_EXEC"))
"""Variables of options that `hangcheck run` does not pass on: they may hold secrets."""


def from_environment(
    environment: Mapping[str, str], on_refusal: Callable[[str], object] | None = None
) -> Settings:
    """Read the settings; an invalid value raises BadUsage, or goes to ``on_refusal``."""
    values: dict[str, Any] = {}
    for name in NAMES:
        text = environment.get(PREFIX + name.upper())
        try:
            if text:  # only then: reading the types of all settings takes a rank some milliseconds
                values[name] = read_option(name, text)
        except BadUsage as refusal:
            if on_refusal is None:
                raise
            on_refusal(f"{refusal}; taking the default, {getattr(DEFAULTS, name)}")
    return Settings(**values)


def read_option(name: str, text: str, said: str = "") -> object:
    """Convert one setting's text to its value; BadUsage if it is not of the setting's type."""
    said, default = said or f"{PREFIX}{name.upper()}", getattr(DEFAULTS, name)
    known = f"{default:g}" if isinstance(default, float) else _text(default)
    remedy = f"write for example {said}={EXAMPLES.get(name, known)}"
    if name in MAY_BE_OFF and text.lower() in OFF:
        return 0.0
    switches = {
        "1": "true",
        "yes": "true",
        "on": "true",
        "0": "false",
        "no": "false",
        "off": "false",
    }
    plain = switches.get(text.lower(), text)
    given = {name: plain if isinstance(default, bool) else text}
    try:
        value: object = getattr(msgspec.convert(given, Settings, strict=False), name)
    except msgspec.ValidationError as error:
        words = {float: "it is no number", bool: "it is neither 0 nor 1"}
        why = words.get(type(default), "it is no port from 1 to 65535")
        kind = next(each.type for each in msgspec.structs.fields(Settings) if each.name == name)
        if get_origin(kind) is Literal:
            why = f"it is none of {', '.join(get_args(kind))}"
        raise BadUsage(f"{said}={text!r} cannot be used ({why})", remedy) from error
    is_off = name in MAY_BE_OFF and value == 0
    if isinstance(value, float) and not 0 < value < float("inf") and not is_off:
        raise BadUsage(f"{said}={text!r} is no positive number", remedy)
    return value


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else f"{value}"


def environment_with(environment: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return an environment in which every setting is as given, whatever it was before."""
    # So all processes of a job read the same values, and all values are valid.
    ours = VARIABLES | ONLY_OF_RUN
    kept = {name: value for name, value in environment.items() if name not in ours}
    return kept | to_environment(settings)


def to_environment(settings: Settings) -> dict[str, str]:
    """Write the settings that differ from their defaults as environment variables."""
    return {
        PREFIX + name.upper(): _text(getattr(settings, name))
        for name in NAMES
        if getattr(settings, name) != getattr(DEFAULTS, name)
    }
