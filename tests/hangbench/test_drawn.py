"""A quick draw of composed programs, really run; ``HANGBENCH_SEED`` draws others.

What must never fail: a false alarm, and a hang that nothing is told of. How right who, why and
where are, a published draw of many tells.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from corpus.generator.drawing import draw_programs
from corpus.generator.running import run_program
from hangbench.bench import PATIENCE
from long_tests import LONG_TEST

if TYPE_CHECKING:
    from pathlib import Path

    from corpus.generator.writing import Program

DRAWN, TIME_LIMIT_S = 2, 240.0
MOST_RANKS = 2
"""Of a program: more take minutes to start where other tests run beside it."""
SEED = int(os.environ.get("HANGBENCH_SEED", "710004"))
MANY = draw_programs(SEED, 4 * DRAWN, "both", quick=True)
SMALL = islice((one for one in MANY if one.truth.processes <= MOST_RANKS), DRAWN)
PROGRAMS = {one.name: one for one in SMALL}
pytestmark = list(LONG_TEST)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_nobody_wrote_gets_no_false_alarm_and_no_silence(
    name: str, tmp_path: Path
) -> None:
    program: Program = PROGRAMS[name]  # its name tells the seed
    told = run_program(program, tmp_path, TIME_LIMIT_S, PATIENCE)
    assert not told.false_alarm, f"{program.composed}: {told.answer}"
    assert told.healthy or told.alarm_after_s is not None, f"{program.composed}: {told.told}"
