"""A quick draw of composed programs, really run; ``HANGBENCH_SEED`` draws others."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from hangbench.bench import PATIENCE
from hangbench.generator.drawing import draw_programs
from hangbench.generator.running import run_programs
from hangbench.table import render

if TYPE_CHECKING:
    from pathlib import Path

DRAWN, AT_A_TIME, TIME_LIMIT_S = 12, 2, 200.0
MOST_RANKS = 2
"""Of a program: more take minutes to start where other tests run beside it."""
SEED = int(os.environ.get("HANGBENCH_SEED", "710004"))
pytestmark = [pytest.mark.real, pytest.mark.timeout(DRAWN / AT_A_TIME * TIME_LIMIT_S)]


def test_a_quick_draw_gives_no_false_alarm_and_misses_no_hang(tmp_path: Path) -> None:
    """What must never fail; how right who, why and where are, a published draw of many tells."""
    many = draw_programs(SEED, 4 * DRAWN, "both", quick=True)
    small = (one for one in many if one.truth.processes <= MOST_RANKS)
    programs = list(islice(small, DRAWN))
    scores = run_programs(
        programs, tmp_path, AT_A_TIME, time_limit_s=TIME_LIMIT_S, patience=PATIENCE
    )
    told = f"seed {SEED}\n{render(scores)}"
    print(told)  # noqa: T201 - what a failing or verbose run shows
    alarmed = [one.name for one in scores if one.false_alarm]
    missed = [one.name for one in scores if not one.healthy and one.alarm_after_s is None]
    assert not alarmed, told
    assert not missed, told
