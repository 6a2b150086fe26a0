"""Metrics of a run as Prometheus reads them (its text format, version 0.0.4): pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lightning_hangcheck.model.slugs import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Iterator

STATES: dict[VerdictKind, int] = {"suspect": 1, "hang": 2, "dead": 3}
"""Of the verdict that stands; all others are 0. A public promise: alert rules compare with it."""


class _Metric(NamedTuple):
    name: str
    help: str


STATE = _Metric("hangcheck_state", "State of the job: 0 ok, 1 suspect, 2 hang, 3 dead.")
PROGRESS = _Metric(
    "hangcheck_last_progress_timestamp_seconds",
    "Unix time of the last sign of progress of each rank of this node.",
)
STALL = _Metric(
    "hangcheck_stall_seconds",
    "Length of the stall that stands, when this was written; 0 if none does.",
)
WATCHING = _Metric("hangcheck_watching", "1 while the run is watched, 0 once it has ended.")
WRITTEN = _Metric("hangcheck_written_timestamp_seconds", "Unix time at which this was written.")
EXIT_CODE = _Metric("hangcheck_exit_code", "Exit code of the command that was run, at its end.")
METRICS = (STATE, PROGRESS, STALL, WATCHING, WRITTEN, EXIT_CODE)


class RunReading(Struct, frozen=True, kw_only=True):
    """A run at one moment.

    Attributes:
        standing: The verdict that stands; at the end the last one; None where nothing was found.
        stall_s: For how long the job stands still; 0 where it does not.
        progress: Unix time of each rank's last sign of progress.
        written: Unix time of this reading.
        exit_code: Of the command; None while it runs, and where nobody knows it.
    """

    run_id: str
    standing: VerdictKind | None = None
    stall_s: float = 0.0
    progress: dict[int, float] = {}
    written: float
    watching: bool = True
    exit_code: int | None = None


def render(reading: RunReading) -> bytes:
    """Write a reading, each metric with its HELP and TYPE."""
    return "".join(f"{line}\n" for line in _lines(reading)).encode()


def _lines(reading: RunReading) -> Iterator[str]:
    run = reading.run_id
    state = STATES.get(reading.standing, 0) if reading.standing is not None else 0
    yield from _head(STATE)
    yield _sample(STATE, state, run=run)
    yield from _head(PROGRESS)
    for rank, moment in sorted(reading.progress.items()):
        yield _sample(PROGRESS, round(moment, 3), run=run, rank=str(rank))
    yield from _head(STALL)
    yield _sample(STALL, round(reading.stall_s, 3), run=run)
    yield from _head(WATCHING)
    yield _sample(WATCHING, int(reading.watching), run=run)
    yield from _head(WRITTEN)
    yield _sample(WRITTEN, round(reading.written, 3), run=run)
    if reading.exit_code is not None:
        yield from _head(EXIT_CODE)
        yield _sample(EXIT_CODE, reading.exit_code, run=run)


def _head(metric: _Metric) -> tuple[str, str]:
    return f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"


def _sample(metric: _Metric, value: float, **labels: str) -> str:
    told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
    return f"{metric.name}{{{told}}} {value!r}"


def _escaped(text: str) -> str:
    """A label's value: a run folder may be called anything."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return escaped.encode(errors="replace").decode()
