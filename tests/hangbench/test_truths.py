"""The corpus itself: every case has a truth that speaks the contract's words."""

from __future__ import annotations

import ast

import pytest
from hangbench.bench import CASES, Truth, any_of, cases, truth_of

from lightning_hangcheck.model.naming.slugs import CAUSES, PHASES

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
        mechanism=truth.mechanism,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_program_says_what_happens_and_has_the_function(name: str) -> None:
    source = (CASES / f"{name}.py").read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source))
    assert all(f"def {function}(" in source for function in any_of(truth_of(name).function))
