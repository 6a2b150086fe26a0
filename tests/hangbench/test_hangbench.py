"""Every case of the corpus, really run under torchrun and `hangcheck run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema
import pytest
from hangbench.bench import as_json, cases, run_case, truth_of

from lightning_hangcheck.model.codec import verdict_schema

if TYPE_CHECKING:
    from pathlib import Path

TIME_LIMIT_S = 100
pytestmark = [pytest.mark.real, pytest.mark.timeout(TIME_LIMIT_S + 40)]
HANGING = [name for name in cases() if not truth_of(name).healthy]
HEALTHY = [name for name in cases() if truth_of(name).healthy]
ALARMS = {"hang", "dead", "crashed"}


@pytest.mark.parametrize("name", HANGING)
def test_a_hang_names_its_culprit_cause_and_place(name: str, tmp_path: Path) -> None:
    truth, outcome = truth_of(name), run_case(name, tmp_path, TIME_LIMIT_S)
    assert outcome.verdicts, outcome.output
    verdict = outcome.verdicts[-1]
    jsonschema.validate(as_json(verdict), verdict_schema())
    assert (verdict.verdict, list(verdict.culprits), verdict.cause) == (
        truth.verdict,
        truth.culprits,
        truth.cause,
    ), outcome.output
    assert truth.function in verdict.summary
    assert truth.phase in (None, verdict.phase)
    assert verdict.remedies
    assert (outcome.exit_code == 75) == (truth.verdict in ("hang", "dead"))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_that_looks_bad_gives_no_alarm(name: str, tmp_path: Path) -> None:
    outcome = run_case(name, tmp_path, TIME_LIMIT_S)
    assert not ALARMS.intersection(outcome.told), outcome.output
    assert outcome.told[-1] == "finished", outcome.output
    assert outcome.exit_code == 0
