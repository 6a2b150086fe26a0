"""The corpus itself: every case has a truth that speaks the contract's words."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hangbench.bench import CASES, Truth, any_of, cases, truth_of

from lightning_hangcheck.model.slugs import CAUSES, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = cases()
HEALTHY = [name for name in NAMES if truth_of(name).healthy]
HANGING = [name for name in NAMES if not truth_of(name).healthy]
MOST_IN_CI = 32
"""Of some 20 s each, two at a time: five minutes."""
GONE = {"crashed", "dead"}
LEAST_OF_SEVERAL, LEAST_UNHURRIED = 3, 15


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(HANGING) >= 70
    assert len(HEALTHY) >= 30


def test_ranks_are_many_and_silences_long_in_enough_cases() -> None:
    several = [name for name in NAMES if truth_of(name).processes >= LEAST_OF_SEVERAL]
    assert len(several) >= len(NAMES) / 3
    assert len([name for name in HEALTHY if truth_of(name).unhurried]) >= LEAST_UNHURRIED


def test_one_case_for_each_mechanism_runs_with_the_tests() -> None:
    chosen = [truth_of(name) for name in NAMES if truth_of(name).tier == "ci"]
    mechanisms = {truth.mechanism for truth in chosen}
    assert all(mechanisms)
    assert len(mechanisms) == len(chosen) <= MOST_IN_CI
    assert not any(truth_of(name).mechanism for name in NAMES if truth_of(name).tier != "ci")


def test_every_program_has_a_truth() -> None:
    helpers = {"onset", "one_gpu", "queued", "queued_on_cpu", "queued_on_gpu"}
    programs = {path.stem for path in CASES.glob("*.py")} - helpers
    assert programs == set(NAMES)


def _wrong(names: list[str], check: Callable[[Truth], bool]) -> list[str]:
    return [name for name in names if not check(truth_of(name))]


def _says_what_is_right(truth: Truth) -> bool:
    return (
        truth.culprits == sorted(truth.culprits)
        and bool(truth.culprits and any_of(truth.verdict) and any_of(truth.cause))
        and {*any_of(truth.verdict)} <= {"hang", "dead", "crashed"}
        and {*any_of(truth.cause)} <= {*CAUSES}
        and {*any_of(truth.phase or [])} <= {*PHASES}
    )


def _has_a_reason_for_several(truth: Truth) -> bool:
    answers = [any_of(one) for one in (truth.verdict, truth.cause, truth.function)]
    answers.append(any_of(truth.phase or []))
    several = bool(truth.or_culprits) or any(len(answer) > 1 for answer in answers)
    return bool(truth.because) == several


def _says_only_that_it_is_healthy(truth: Truth) -> bool:
    return truth == Truth(
        healthy=True,
        processes=truth.processes,
        launcher=truth.launcher,
        needs=truth.needs,
        says=truth.says,
        gpu=truth.gpu,
        unhurried=truth.unhurried,
        tier=truth.tier,
        mechanism=truth.mechanism,
    )


def test_every_truth_says_what_is_right_in_the_contracts_words() -> None:
    assert _wrong(HANGING, _says_what_is_right) == []


def test_every_case_whose_culprit_lives_says_where_in_its_life() -> None:
    assert _wrong(HANGING, lambda one: bool(one.phase or GONE & {*any_of(one.verdict)})) == []


def test_several_right_answers_have_a_reason() -> None:
    assert _wrong(HANGING, _has_a_reason_for_several) == []


def test_the_truth_about_a_healthy_case_is_only_that() -> None:
    assert _wrong(HEALTHY, _says_only_that_it_is_healthy) == []


def test_every_program_says_what_happens_and_has_the_function() -> None:
    def complete(name: str) -> bool:
        source = (CASES / f"{name}.py").read_text(encoding="utf-8")
        named = all(f"def {function}(" in source for function in any_of(truth_of(name).function))
        return bool(ast.get_docstring(ast.parse(source))) and named

    assert [name for name in NAMES if not complete(name)] == []
