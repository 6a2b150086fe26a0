#!/usr/bin/env python
"""Seconds that `hangcheck attach` takes on eight stuck gloo ranks, and one look at all of them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil
from figures import Figure, tell

from lightning_hangcheck.files import decode
from lightning_hangcheck.look.proc import slept_s
from lightning_hangcheck.look.sample import Target, look_at
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS_PROGRAM = Path(__file__).parent / "programs" / "eight_stuck_ranks.py"
RANKS = 8
START_LIMIT_S = 300.0
LOOK_LIMIT_S = 5.0
VISIT_LIMIT_S = 60.0
IDLE_S = 31.0
"""Longer than the patience for idle ranks, so that the visit comes to its verdict."""


def main() -> None:
    """Start the ranks, visit them several times, end them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="visits, and looks (3)")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds stuck before (31)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, _stuck_job(Path(name), options.idle) as job:
        pids = [process.pid for process in job.children()]
        looks = [_look(pids) for _ in range(options.runs)]
        visits = [_visit(job.pid, Path(name) / f"run-{run}") for run in range(options.runs)]
    tell([*_of_looks(looks), *_of_visits(visits)], as_json=options.json)


@contextmanager
def _stuck_job(folder: Path, idle_s: float) -> Iterator[psutil.Popen]:
    with psutil.Popen([sys.executable, str(RANKS_PROGRAM), str(folder)]) as job:
        try:
            _wait_until_stuck(job, folder, idle_s)
            yield job
        finally:
            if job.poll() is None:
                job.terminate()


def _wait_until_stuck(job: psutil.Popen, folder: Path, idle_s: float) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and job.poll() is None:
        if len(list(folder.glob("stands-*"))) == RANKS and _asleep(job, idle_s):
            return
        time.sleep(0.2)
    raise SystemExit("attach_cost: the ranks did not come to stand still")


def _asleep(job: psutil.Popen, idle_s: float) -> bool:
    """Whether all have slept for a while; a kernel that does not tell is believed at once."""
    slept = (slept_s(child.pid) for child in job.children())
    return all(one is None or one >= idle_s for one in slept)


def _look(pids: list[int]) -> tuple[float, int]:
    """Seconds for one look at all ranks, and how many stacks it brought."""
    subjects = [Target(pid=pid) for pid in pids]
    began = time.monotonic()
    look = look_at(subjects, LOOK_LIMIT_S)
    return time.monotonic() - began, sum(one.stack is not None for _, one in look.samples)


def _visit(pid: int, folder: Path) -> tuple[float, str]:
    """Seconds for the whole command, and what it said."""
    command = [sys.executable, "-m", "lightning_hangcheck", "attach", "--pid", str(pid)]
    command += ["--run-dir", str(folder)]
    began = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=VISIT_LIMIT_S, check=False)
    seconds = time.monotonic() - began
    file = RunFolder(folder).verdict_file
    verdict = decode(file.read_bytes(), Verdict, str(file))
    return seconds, f"{verdict.verdict} of rank {', '.join(map(str, verdict.culprits))}"


def _of_looks(looks: list[tuple[float, int]]) -> list[Figure]:
    note = f"{_spread([seconds for seconds, _ in looks])}; {min(n for _, n in looks)} stacks"
    return [Figure("evidence of 8 ranks, one look", _best(looks), "s", "under 1 s", note)]


def _of_visits(visits: list[tuple[float, str]]) -> list[Figure]:
    said = ", ".join(f"{words} ({n} times)" for words, n in Counter(w for _, w in visits).items())
    note = f"{_spread([seconds for seconds, _ in visits])}; {said}"
    return [Figure("`hangcheck attach`, whole command", _best(visits), "s", "under 3 s", note)]


def _best(timed: list[tuple[float, int]] | list[tuple[float, str]]) -> float:
    """What the tool takes where nothing else takes from it."""
    return min(seconds for seconds, _ in timed)


def _spread(seconds: list[float]) -> str:
    load = os.getloadavg()[0]
    return f"best of {len(seconds)}, median {median(seconds):.2f} s, load {load:.1f}"


if __name__ == "__main__":
    main()
