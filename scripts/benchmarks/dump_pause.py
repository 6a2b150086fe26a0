#!/usr/bin/env python
"""The longest pause of a process by one look at it, measured in that process."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from figures import Figure, tell

from lightning_hangcheck.look.sample import Target, look_at

PROGRAM = Path(__file__).parent / "programs" / "paused_process.py"
START_LIMIT_S = 120.0
LOOK_LIMIT_S = 5.0
INTERVAL_S = 0.25
NS_PER_MS = 1e6


@dataclass(frozen=True)
class Situation:
    """What is looked at, and how.

    Attributes:
        closer: Read native calls too, as of a rank that a hang names: that alone pauses it.
    """

    name: str
    arguments: tuple[str, ...]
    closer: bool = False


SITUATIONS = (
    Situation("clock loop", ("clock", "0")),
    Situation("clock loop beside 200 threads", ("clock", "200")),
    Situation("steps of a Lightning fit", ("fit",)),
    Situation("clock loop, native calls too", ("clock", "0"), closer=True),
    Situation("clock loop beside 200 threads, native calls too", ("clock", "200"), closer=True),
)
Span = tuple[int, int]


def main() -> None:
    """Take looks at each of them, and as often none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=40, help="looks in each situation (40)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tell([_measure(one, options.looks) for one in SITUATIONS], as_json=options.json)


def _measure(situation: Situation, looks: int) -> Figure:
    command = [sys.executable, "-W", "ignore", str(PROGRAM), *situation.arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            _wait_until_ready(process)
            looked, unlooked = _look_at(process.pid, situation.closer, looks)
            process.send_signal(signal.SIGUSR1)
            out, _ = process.communicate(timeout=START_LIMIT_S)
        finally:
            process.kill()
    return _figure(situation, looked, unlooked, json.loads(out.splitlines()[-1]))


def _wait_until_ready(process: subprocess.Popen[str]) -> None:
    for line in process.stdout or ():
        if line.strip() == "ready":
            return
    raise SystemExit("dump_pause: the process to look at did not start")


def _look_at(pid: int, closer: bool, looks: int) -> tuple[list[Span], list[Span]]:
    """Return when we looked, and as many moments, as long, at which we did not."""
    looked, unlooked = [], []
    for _ in range(looks):
        time.sleep(INTERVAL_S)
        began = time.monotonic_ns()
        look = look_at([Target(pid=pid)], LOOK_LIMIT_S, closer=(0,) * closer)
        ended = time.monotonic_ns()
        if look.samples[0][1].stack is None:
            print(f"dump_pause: a look without a stack: {look.gaps}", file=sys.stderr)
            continue
        looked.append((began, ended))
        time.sleep(INTERVAL_S + (ended - began) / 1e9)
        now = time.monotonic_ns()
        unlooked.append((now - (ended - began), now))
    if not looked:
        raise SystemExit("dump_pause: no look gave a stack")
    return looked, unlooked


def _figure(
    situation: Situation, looked: list[Span], unlooked: list[Span], pauses: list[Span]
) -> Figure:
    by_looks = [_longest_ms(span, pauses) for span in looked]
    without = [_longest_ms(span, pauses) for span in unlooked]
    took_ms = median((ended - began) / NS_PER_MS for began, ended in looked)
    note = (
        f"longest {max(by_looks):.1f} ms of {len(looked)} looks of {took_ms:.0f} ms; in spans as "
        f"long without a look median {median(without):.1f} ms, longest {max(without):.1f} ms; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    return Figure(f"pause by a look: {situation.name}", median(by_looks), "ms", "", note)


def _longest_ms(span: Span, pauses: list[Span]) -> float:
    """Longest pause that touches a span of time."""
    began, ended = span
    touching = (long for at, long in pauses if at < ended and at + long > began)
    return max(touching, default=0) / NS_PER_MS


if __name__ == "__main__":
    main()
