"""Metrics of a run as Prometheus reads them (its text format, version 0.0.4): pure."""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.slugs import VerdictKind

STATES: dict[VerdictKind, int] = {"suspect": 1, "hang": 2, "dead": 3}
"""Of the verdict that stands; all others are 0. A public promise: alert rules compare with it."""
METRICS = {
    "hangcheck_state": "State of the job: 0 ok, 1 suspect, 2 hang, 3 dead.",
    "hangcheck_last_progress_timestamp_seconds": (
        "Unix time of the last sign of progress of each rank of this node."
    ),
    "hangcheck_stall_seconds": (
        "Length of the stall that stands, when this was written; 0 if none does."
    ),
    "hangcheck_watching": "1 while the run is watched, 0 once it has ended.",
    "hangcheck_written_timestamp_seconds": "Unix time at which this was written.",
    "hangcheck_exit_code": "Exit code of the command that was run, at its end.",
}
"""Each by its name, with its HELP."""


class RunReading(Struct, frozen=True, kw_only=True):
    """A run at one moment.

    Attributes:
        standing: The verdict that stands; at the end the last one; None where nothing was found.
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
    state = STATES.get(reading.standing, 0) if reading.standing is not None else 0
    told: tuple[dict[int | None, float], ...] = (
        {None: state},
        {rank: round(moment, 3) for rank, moment in sorted(reading.progress.items())},
        {None: round(reading.stall_s, 3)},
        {None: int(reading.watching)},
        {None: round(reading.written, 3)},
        {} if reading.exit_code is None else {None: reading.exit_code},
    )
    # a label's value: a run folder may be called anything
    escaped = reading.run_id.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = []
    for (metric, meaning), samples in zip(METRICS.items(), told, strict=True):
        if metric == "hangcheck_exit_code" and not samples:
            continue
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} gauge"]
        for rank, value in samples.items():
            of_rank = "" if rank is None else f',rank="{rank}"'
            lines.append(f'{metric}{{run="{escaped}"{of_rank}}} {value!r}')
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")
