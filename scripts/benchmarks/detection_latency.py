#!/usr/bin/env python
"""Seconds from the moment a fault strikes a real two-rank training to its culprit being named."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from figures import Figure, tell

from lightning_hangcheck.files import decode
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parent.parent / "train_reference.py"
NAMING_TARGET = "under 5 s"
CALLED_WITHIN = {
    "process_stopped": "15 s",
    "process_dead": "15 s",
    "crashed": "15 s",
    "rank_stalled": "30 s",
    "dataloader_worker": "30 s",
    "logger_init": "30 s",
    "rendezvous": "30 s",
    "spinning": "30 s, or 20 times its longest pause",
}
"""The contract's patience for each cause: proven, idle silence, busy silence of known pace."""
STRIKE_STEPS = {"spinning": 60}
"""Where the contract's patience depends on a learnt pace, the ranks first show one."""
ENDINGS = ("hang", "dead", "crashed")
RUN_LIMIT_S = 400.0


@dataclass(frozen=True)
class Latency:
    """Seconds after the strike; None if it never happened."""

    named: float | None
    called: float | None


def main() -> None:
    """Run each cause several times and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="runs of each cause (10)")
    parser.add_argument("--cause", action="append", choices=CALLED_WITHIN, help="only this one")
    parser.add_argument("--rank", type=int, default=1, help="which rank is struck (1)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (1)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: list[Figure] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for cause in options.cause or CALLED_WITHIN:
            latencies = list(pool.map(_run_once, [cause] * options.runs, repeat(options.rank)))
            figures += _summarize(cause, latencies)
    tell(figures, as_json=options.json)


def _run_once(cause: str, rank: int) -> Latency:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        offset_ns = time.time_ns() - time.monotonic_ns()
        step = f":{STRIKE_STEPS[cause]}" if cause in STRIKE_STEPS else ""
        _train(folder, f"{cause}@{rank}{step}")
        mark = folder / "mark"
        if not mark.exists():
            sys.stderr.write(f"{cause}: did not strike; see below\n{_end_of_log(folder)}\n")
            return Latency(None, None)
        struck_at = (int(mark.read_text().split()[0]) + offset_ns) / 1e9
        latency = read_latency(RunFolder(folder / "run"), rank, struck_at)
    sys.stderr.write(f"{cause}: named {latency.named} s, called {latency.called} s\n")
    return latency


def _train(folder: Path, fault: str) -> None:
    command = [sys.executable, "-m", "lightning_hangcheck", "run", "--on-hang", "abort"]
    command += ["--run-dir", str(folder / "run"), "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", str(SCRIPT)]
    command += ["--batch_size", "4", "--inject", fault]
    environment = {**os.environ, "HANGCHECK_FAULT_MARK": str(folder / "mark")}
    with (folder / "log").open("wb") as log:
        training = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            training.wait(RUN_LIMIT_S)
        except subprocess.TimeoutExpired:
            training.terminate()
            training.wait(60)


def read_latency(folder: RunFolder, rank: int, struck_at: float) -> Latency:
    """Return when a run first named this rank, and called it a hang, since a moment (time.time)."""
    named = called = None
    for verdict in _verdicts(folder):
        seconds = round(_moment(verdict.detected_at) - struck_at, 2)
        if verdict.culprits == (rank,) and verdict.verdict in ("suspect", *ENDINGS):
            named = seconds if named is None else named
            if verdict.verdict in ENDINGS:
                called = seconds if called is None else called
    return Latency(named, called)


def _verdicts(folder: RunFolder) -> Iterator[Verdict]:
    for number in folder.verdict_numbers():
        file = folder.numbered_verdict(number)
        yield decode(file.read_bytes(), Verdict, str(file))


def _moment(timestamp: str) -> float:
    """Seconds since the epoch; Python 3.10 does not read the letter Z."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def _summarize(cause: str, latencies: list[Latency]) -> list[Figure]:
    rows = (
        ("strike to culprit named", NAMING_TARGET, [latency.named for latency in latencies]),
        ("strike to verdict", CALLED_WITHIN[cause], [latency.called for latency in latencies]),
    )
    return [_figure(f"{cause}: {what}", target, values) for what, target, values in rows]


def _figure(name: str, target: str, values: list[float | None]) -> Figure:
    seen = [value for value in values if value is not None]
    if not seen:
        return Figure(name, None, "s", target, f"never, in {len(values)} runs")
    note = f"median of {len(seen)} of {len(values)} runs, {min(seen):.1f} to {max(seen):.1f} s"
    return Figure(name, median(seen), "s", target, note)


def _end_of_log(folder: Path) -> str:
    return "\n".join((folder / "log").read_text(errors="replace").splitlines()[-15:])


if __name__ == "__main__":
    main()
