"""Remedies that help only in one phase of a rank's life."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_LOAD, finding, job, rank

from lightning_hangcheck.diagnosis.job import read_job
from lightning_hangcheck.diagnosis.verdict.remedies import remedies_for

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import Cause, Phase

JOB = read_job(job(rank(0, IN_LOAD)))


@pytest.mark.parametrize("cause", ["spinning", "slow_progress"])
@pytest.mark.parametrize(
    ("phase", "advised"), [("generate", True), ("training_step", False), (None, False)]
)
def test_less_text_is_advised_only_where_text_is_made(
    cause: Cause, phase: Phase | None, advised: bool
) -> None:
    texts = [remedy.text for remedy in remedies_for(finding(cause, phase=phase), JOB)]
    assert any("max_new_tokens=256, then 128" in text for text in texts) == advised
    assert texts
