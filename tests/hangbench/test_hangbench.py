"""Cases of the corpus, really run under torchrun and `hangcheck run`: one for each mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema
import pytest
from hangbench.bench import any_of, as_json, cases, run_case, truth_of
from hangbench.scoring import score
from long_tests import WHEN_ASKED_FOR

from lightning_hangcheck.model.codec import verdict_schema

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.mark.structures import ParameterSet

TIME_LIMIT_S = 240
pytestmark = [pytest.mark.real, pytest.mark.timeout(TIME_LIMIT_S + 40)]
IN_CI = ("healthy_retries", "uneven_ddp_batches")
"""The others' recordings are judged there."""


def chosen(*, healthy: bool) -> list[ParameterSet]:
    names = [
        one for one in cases() if truth_of(one).tier == "ci" and truth_of(one).healthy is healthy
    ]
    return [pytest.param(one, marks=() if one in IN_CI else WHEN_ASKED_FOR) for one in names]


@pytest.mark.parametrize("name", chosen(healthy=False))
def test_a_hang_names_its_culprit_cause_and_place(name: str, tmp_path: Path) -> None:
    truth, outcome = truth_of(name), run_case(name, tmp_path, TIME_LIMIT_S)
    assert outcome.verdicts, outcome.output
    verdict = outcome.verdicts[-1]
    jsonschema.validate(as_json(verdict), verdict_schema())
    assert score(name, truth, outcome).right, outcome.output
    assert verdict.remedies
    assert (outcome.exit_code == 75) == (verdict.verdict in ("hang", "dead"))
    assert outcome.told[-1] in any_of(truth.verdict)


@pytest.mark.parametrize("name", chosen(healthy=True))
def test_a_healthy_run_that_looks_bad_gives_no_alarm(name: str, tmp_path: Path) -> None:
    outcome = run_case(name, tmp_path, TIME_LIMIT_S)
    assert score(name, truth_of(name), outcome).right, outcome.output
    assert outcome.exit_code == 0
