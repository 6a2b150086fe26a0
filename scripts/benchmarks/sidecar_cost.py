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

RANKS_PROGRAM = Path(__file__).parent / "programs" / "beating_ranks.py"
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
        command += ["--", sys.executable, str(RANKS_PROGRAM), str(RANKS)]
        launcher = psutil.Popen(command, stderr=subprocess.DEVNULL)
        try:
            figures = _measure(launcher, options.seconds)
        finally:
            launcher.terminate()
            launcher.wait(30)
    tell(figures, as_json=options.json)


def _measure(launcher: psutil.Process, seconds: float) -> list[Figure]:
    sidecar, _ = wait_for_sidecar(launcher, RANKS)
    time.sleep(SETTLING_S)  # what is measured is the watching, not the start
    before, began = (cpu_s(sidecar), cpu_s(launcher)), time.monotonic()
    memory = []
    while time.monotonic() < began + seconds:
        memory.append(sidecar.memory_info().rss)
        time.sleep(0.5)
    wall = time.monotonic() - began
    sidecar_share, launcher_share = (
        100 * (cpu_s(process) - earlier) / wall
        for process, earlier in zip((sidecar, launcher), before, strict=True)
    )
    note = f"{RANKS} ranks, {wall:.0f} s"
    return [
        Figure("sidecar, CPU of one core", sidecar_share, "%", "under 1 %", note),
        Figure("sidecar, resident memory", max(memory) / 1e6, "MB", "under 60 MB", note),
        Figure("`hangcheck run` itself, CPU of one core", launcher_share, "%", "", note),
    ]


def wait_for_sidecar(
    launcher: psutil.Process, ranks: int, limit_s: float = START_LIMIT_S
) -> tuple[psutil.Process, dict[int, psutil.Process]]:
    """Return the sidecar and the ranks, by number, once all of them run."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        sidecar, found = None, dict[int, psutil.Process]()
        for process in launcher.children(recursive=True):
            try:
                words = process.cmdline()
                if "lightning_hangcheck.watch.sidecar" in words:
                    sidecar = process
                elif str(RANKS_PROGRAM) in words and "RANK" in (environment := process.environ()):
                    found.setdefault(int(environment["RANK"]), process)  # before its children
            except psutil.NoSuchProcess:
                continue
        if sidecar is not None and len(found) == ranks:
            return sidecar, found
        time.sleep(0.1)
    raise SystemExit(f"the {ranks} ranks or the sidecar did not start within {limit_s:.0f} s")


def cpu_s(process: psutil.Process) -> float:
    """Processor time of a process and of its children that have ended, such as py-spy."""
    return float(sum(process.cpu_times()[:4]))


if __name__ == "__main__":
    main()
