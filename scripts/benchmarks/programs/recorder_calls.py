"""Times the calls of the recorder in this process; recorder_cost.py starts it as a rank."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable

ITEMS = 1_000


def main() -> None:
    """Print microseconds per call, by name."""
    repeats = int(sys.argv[1])
    hc.checkpoint("Script started")
    enter_phase = current().page.enter_phase
    figures = {
        "beat()": _time(hc.beat, 200_000, repeats),
        "enter_phase(), what a callback's hook calls": _time(
            lambda: enter_phase("training_step", 1, 2, 3), 100_000, repeats
        ),
        "checkpoint(), journal and console to files": _time(
            lambda: hc.checkpoint("Model created"), 2_000, repeats
        ),
        "section(), entered and left": _time(_pass_section, 1_000, repeats),
        "step(), entered and left": _time(_pass_step, 1_000, repeats),
        "an item of track()": _time(_pass_items, 1, repeats) / ITEMS,
    }
    print(json.dumps(figures))


def _pass_step() -> None:
    with hc.step("get observation"):
        pass


def _pass_items() -> None:
    for _ in hc.track(range(ITEMS), "simulation"):
        pass


def _pass_section() -> None:
    with hc.section("Model created"):
        pass


def _time(call: Callable[[], object], number: int, repeats: int) -> float:
    """Median over loops of the microseconds that one call takes, the loop itself included."""
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(number):
            call()
        spent.append((time.perf_counter() - began) / number * 1e6)
    return statistics.median(spent)


if __name__ == "__main__":
    main()
