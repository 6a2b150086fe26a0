"""Runs composed programs at the time limits that users have, each in a folder of its own."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
from corpus.generator.drawing import lay_out
from hangbench.bench import run_script
from hangbench.scoring import Score, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from corpus.generator.writing import Program

SCORE_FILE = "score.json"
LONGEST_RUN_S = 600.0
"""A start on a busy machine, which took 220 s once, and 300 s of patience or 240 of silence."""


def run_programs(
    programs: Sequence[Program],
    folder: Path,
    jobs: int,
    *,
    time_limit_s: float = LONGEST_RUN_S,
    patience: Mapping[str, str] | None = None,
) -> list[Score]:
    """Run and score programs, a number at a time, in folders named as they are.

    One that has its score there already is not run again: a draw takes hours, and may be cut.

    Args:
        programs: Which.
        folder: Of their folders.
        jobs: How many at a time.
        time_limit_s: After which a program is ended.
        patience: Other time limits than those that users have.
    """

    def run(one: Program) -> Score:
        scored = folder / one.name / SCORE_FILE
        if scored.exists():
            return msgspec.json.decode(scored.read_bytes(), type=Score)
        result = run_program(one, folder / one.name, time_limit_s, patience or {})
        scored.write_bytes(msgspec.json.encode(result))
        return result

    with ThreadPoolExecutor(jobs) as at_work:
        return list(at_work.map(run, programs))


def run_program(
    program: Program, folder: Path, time_limit_s: float, patience: Mapping[str, str]
) -> Score:
    """Run and score one program; what it printed stays in ``output.txt`` of its folder."""
    script = lay_out(program, folder)
    outcome = run_script(script, program.truth, folder, time_limit_s, patience)
    result = score(program.name, program.truth, outcome)
    mark = "right" if result.right else "WRONG"
    sys.stderr.write(f"{mark} {program.name} ({program.composed}): {result.answer}\n")
    return result
