"""The corpus itself: every case has a truth that speaks the contract's words."""

from __future__ import annotations

import ast

import pytest
from hangbench.bench import CASES, Truth, any_of, cases, truth_of

from lightning_hangcheck.model.slugs import CAUSES, PHASES

NAMES = cases()
HEALTHY = [name for name in NAMES if truth_of(name).healthy]
HANGING = [name for name in NAMES if not truth_of(name).healthy]
SENSIBLE_NUMBER_IN_CI = range(20, 31)
GONE = {"crashed", "dead"}
LEAST_OF_SEVERAL, LEAST_UNHURRIED = 3, 15


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(HANGING) >= 70
    assert len(HEALTHY) >= 30


def test_ranks_are_many_and_silences_long_in_enough_cases() -> None:
    several = [name for name in NAMES if truth_of(name).processes >= LEAST_OF_SEVERAL]
    assert len(several) >= len(NAMES) / 3
    assert len([name for name in HEALTHY if truth_of(name).unhurried]) >= LEAST_UNHURRIED


def test_only_a_few_cases_run_with_the_tests() -> None:
    chosen = [name for name in NAMES if truth_of(name).tier == "ci"]
    assert len(chosen) in SENSIBLE_NUMBER_IN_CI


def test_every_program_has_a_truth() -> None:
    programs = {path.stem for path in CASES.glob("*.py")} - {"onset", "queued"}
    assert programs == set(NAMES)


@pytest.mark.parametrize("name", HANGING)
def test_a_truth_says_what_is_right(name: str) -> None:
    truth = truth_of(name)
    assert truth.culprits == sorted(truth.culprits)
    assert truth.culprits
    assert set(any_of(truth.verdict)) <= {"hang", "dead", "crashed"}
    assert any_of(truth.verdict)
    assert set(any_of(truth.cause)) <= set(CAUSES)
    assert any_of(truth.cause)
    assert set(any_of(truth.phase or [])) <= set(PHASES)


@pytest.mark.parametrize("name", HANGING)
def test_every_case_whose_culprit_lives_says_where_in_its_life(name: str) -> None:
    truth = truth_of(name)
    assert truth.phase or GONE.intersection(any_of(truth.verdict))


@pytest.mark.parametrize("name", HANGING)
def test_several_right_answers_have_a_reason(name: str) -> None:
    truth = truth_of(name)
    answers = [any_of(truth.verdict), any_of(truth.cause), any_of(truth.function)]
    answers.append(any_of(truth.phase or []))
    several = bool(truth.or_culprits) or any(len(answer) > 1 for answer in answers)
    assert bool(truth.because) == several


@pytest.mark.parametrize("name", HEALTHY)
def test_the_truth_about_a_healthy_case_is_only_that(name: str) -> None:
    truth = truth_of(name)
    assert truth == Truth(
        healthy=True,
        processes=truth.processes,
        launcher=truth.launcher,
        needs=truth.needs,
        says=truth.says,
        unhurried=truth.unhurried,
        tier=truth.tier,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_program_says_what_happens_and_has_the_function(name: str) -> None:
    source = (CASES / f"{name}.py").read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source))
    assert all(f"def {function}(" in source for function in any_of(truth_of(name).function))
