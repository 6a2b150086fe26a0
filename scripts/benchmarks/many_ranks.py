#!/usr/bin/env python
"""What it costs to watch 64 ranks with 16 children each: healthy, and once one of them stops."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from detection_latency import read_latency
from figures import Figure, tell
from sidecar_cost import RANKS_PROGRAM, cpu_s, wait_for_sidecar

from lightning_hangcheck.rundir import RunFolder

START_LIMIT_S = 300.0
SETTLING_S = 35.0
"""What is new is looked for more often for half a minute."""
STOPPED = 1
AFTER_S = (15.0, 25.0)
"""Two stretches after the stop: looks come often in the first, seldom in the second."""


def main() -> None:
    """Start the ranks under ``hangcheck run``, measure, stop one, measure, end them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64, help="ranks (64)")
    parser.add_argument("--children", type=int, default=16, help="idle children of each (16)")
    parser.add_argument("--seconds", type=float, default=30.0, help="while all is well (30)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_hangcheck", "run", "--run-dir", f"{folder}/run"]
        command += ["--", sys.executable, str(RANKS_PROGRAM)]
        command += [str(options.ranks), str(options.children)]
        launcher = psutil.Popen(command, stderr=subprocess.DEVNULL)
        try:
            sidecar, ranks = wait_for_sidecar(launcher, options.ranks, START_LIMIT_S)
            time.sleep(SETTLING_S)
            healthy = _share(sidecar, options.seconds)
            struck_at = time.time()
            ranks[STOPPED].send_signal(signal.SIGSTOP)
            first, later = (_share(sidecar, seconds) for seconds in AFTER_S)
            memory = sidecar.memory_info().rss / 1e6
            latency = read_latency(RunFolder(Path(folder) / "run"), STOPPED, struck_at)
            ranks[STOPPED].send_signal(signal.SIGCONT)
        finally:
            launcher.terminate()
            launcher.wait(60)
    what = f"{options.ranks} ranks with {options.children} children"
    note = f"load {os.getloadavg()[0]:.1f}"
    tell(
        [
            Figure(f"{what}, sidecar's CPU of one core", healthy, "%", "under 2 %", note),
            Figure("the same in 15 s after one stopped", first, "%", "", note),
            Figure("the same in the 25 s after that", later, "%", "", note),
            Figure(f"{what}, sidecar's memory", memory, "MB", "", note),
            Figure("stop to culprit named", latency.named, "s", "under 4 s", note),
            Figure("stop to verdict", latency.called, "s", "under 11 s", note),
        ],
        as_json=options.json,
    )


def _share(process: psutil.Process, seconds: float) -> float:
    """Percent of one core that it and what it starts take for so long."""
    before, began = cpu_s(process), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_s(process) - before) / (time.monotonic() - began)


if __name__ == "__main__":
    main()
