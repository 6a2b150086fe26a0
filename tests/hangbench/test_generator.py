"""Programs with faults are made as their seeds say."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from corpus.generator.drawing import draw_programs
from hangbench.bench import any_of

from lightning_hangcheck.model.slugs import CAUSES
from lightning_hangcheck.model.slugs import PHASES as SLUGS

if TYPE_CHECKING:
    from corpus.generator.writing import Program

DRAWN = draw_programs(11, 240, "both")

HANGING = [one for one in DRAWN if not one.truth.healthy]


def _functions(source: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def test_the_same_seed_gives_the_same_programs_and_another_gives_others() -> None:
    again, other = draw_programs(11, 240, "both"), draw_programs(12, 240, "both")
    assert again == DRAWN
    assert {one.source for one in other}.isdisjoint(one.source for one in DRAWN)


def test_every_composed_program_is_complete() -> None:
    for program in DRAWN:
        compile(program.source, program.name, "exec")
        assert not re.search(r"\$\w", program.source), program.name
        assert "hangcheck" not in program.source, program.name


def test_composed_truths_speak_the_contracts_words_of_functions_that_are_there() -> None:
    assert [one.name for one in HANGING if not _speaks_truly(one)] == []


def _speaks_truly(program: Program) -> bool:
    truth = program.truth
    several = any(len(any_of(one)) > 1 for one in (truth.verdict, truth.cause, truth.function))
    return (
        {*truth.culprits} <= {*range(truth.processes)}
        and {*any_of(truth.cause)} <= {*CAUSES}
        and {*any_of(truth.phase or [])} <= {*SLUGS}
        and bool(truth.phase or {"crashed", "dead"} & {*any_of(truth.verdict)})
        and {*any_of(truth.function)} <= _functions(program.source)
        and "mark_onset()" in program.source
        and bool(truth.because or not (several or truth.or_culprits))
    )
