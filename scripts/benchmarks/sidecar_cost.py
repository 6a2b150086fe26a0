#!/usr/bin/env python
"""What it costs to watch eight ranks while all is well: the sidecar's CPU time and memory."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from figures import Figure, tell

RANKS_PROGRAM = Path(__file__).parent / "programs" / "eight_ranks.py"
RANKS = 8
SETTLING_S = 5.0
START_LIMIT_S = 60.0


def main() -> None:
    """Start the ranks under ``hangcheck run``, measure for a while, end them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure (60)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_hangcheck", "run", "--run-dir", f"{folder}/run"]
        command += ["--", sys.executable, str(RANKS_PROGRAM)]
        launcher = psutil.Popen(command, stderr=subprocess.DEVNULL)
        try:
            figures = _measure(launcher, options.seconds)
        finally:
            launcher.terminate()
            launcher.wait(30)
    tell(figures, as_json=options.json)


def _measure(launcher: psutil.Process, seconds: float) -> list[Figure]:
    sidecar = _wait_for_sidecar(launcher)
    time.sleep(SETTLING_S)  # what is measured is the watching, not the start
    before, began = (_cpu_s(sidecar), _cpu_s(launcher)), time.monotonic()
    memory = []
    while time.monotonic() < began + seconds:
        memory.append(sidecar.memory_info().rss)
        time.sleep(0.5)
    wall = time.monotonic() - began
    sidecar_share, launcher_share = (
        100 * (_cpu_s(process) - earlier) / wall
        for process, earlier in zip((sidecar, launcher), before, strict=True)
    )
    note = f"{RANKS} ranks, {wall:.0f} s"
    return [
        Figure("sidecar, CPU of one core", sidecar_share, "%", "under 1 %", note),
        Figure("sidecar, resident memory", max(memory) / 1e6, "MB", "under 60 MB", note),
        Figure("`hangcheck run` itself, CPU of one core", launcher_share, "%", "", note),
    ]


def _wait_for_sidecar(launcher: psutil.Process) -> psutil.Process:
    """Return the sidecar once all ranks run."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        processes = launcher.children(recursive=True)
        sidecars = [
            process for process in processes if _runs(process, "lightning_hangcheck.watch.sidecar")
        ]
        ranks = [process for process in processes if _runs(process, str(RANKS_PROGRAM))]
        if sidecars and len(ranks) > RANKS:  # the ranks and their parent
            return sidecars[0]
        time.sleep(0.1)
    raise SystemExit("sidecar_cost: the ranks or the sidecar did not start within 60 s")


def _runs(process: psutil.Process, word: str) -> bool:
    try:
        return word in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
