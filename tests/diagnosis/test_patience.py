"""The contract's patience table."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hangcheck.diagnosis.rules.contract import Finding
from lightning_hangcheck.diagnosis.rules.patience import decide
from lightning_hangcheck.model.case import Limits, Pace

FAST = Pace(longest_pause_s=0.5, pauses=9)
SLOW = Pace(longest_pause_s=4.0, pauses=9)
FRESH = Pace(longest_pause_s=4.0, pauses=2)


def _decide(certainty: Any, silence_s: float, **fields: Any) -> str:
    finding = Finding(
        **{
            "cause": "unknown",
            "culprits": (1,),
            "certainty": certainty,
            "confidence": 0.5,
            "silence_s": silence_s,
            "sentence": "",
            "waited_for": True,
            "samples": 3,
            "span_s": 2.2,
            **fields,
        }
    )
    return decide(finding, Limits())


@pytest.mark.parametrize(
    ("certainty", "silence_s", "pace", "kind"),
    [
        ("proven", 1.9, None, "healthy"),
        ("proven", 2.3, None, "suspect"),
        ("proven", 9.9, None, "suspect"),
        ("proven", 10.0, None, "hang"),
        ("idle", 1.9, None, "healthy"),
        ("idle", 3.9, None, "healthy"),
        ("idle", 4.0, None, "suspect"),
        ("idle", 2.3, FAST, "suspect"),
        ("idle", 29.9, None, "suspect"),
        ("idle", 30.0, None, "hang"),
        ("idle", 7.9, SLOW, "healthy"),
        ("idle", 8.1, SLOW, "suspect"),
        ("idle", 30.0, SLOW, "hang"),
        ("busy", 5.9, None, "healthy"),
        ("busy", 6.0, None, "suspect"),
        ("busy", 5.9, FAST, "healthy"),
        ("busy", 6.0, FAST, "suspect"),
        ("busy", 19.0, SLOW, "healthy"),
        ("busy", 29.9, FAST, "suspect"),
        ("busy", 30.0, FAST, "hang"),
        ("busy", 79.9, SLOW, "suspect"),
        ("busy", 80.0, SLOW, "hang"),
        ("busy", 299.0, None, "suspect"),
        ("busy", 300.0, None, "hang"),
        ("busy", 80.0, FRESH, "suspect"),
        ("livelock", 6.0, None, "suspect"),
        ("livelock", 299.0, FAST, "suspect"),
        ("livelock", 300.0, FAST, "hang"),
        ("other", 299.0, None, "healthy"),
        ("other", 300.0, None, "hang"),
        ("moving", 29.9, FAST, "healthy"),
        ("moving", 30.0, FAST, "slow"),
        ("moving", 79.9, SLOW, "healthy"),
        ("moving", 299.0, None, "healthy"),
        ("moving", 1e6, None, "slow"),
    ],
)
def test_the_table(certainty: str, silence_s: float, pace: Pace | None, kind: str) -> None:
    assert _decide(certainty, silence_s, pace=pace) == kind


@pytest.mark.parametrize(
    ("certainty", "samples", "span_s", "kind"),
    [
        ("idle", 1, 0.0, "healthy"),
        ("idle", 2, 0.7, "healthy"),
        ("idle", 2, 0.8, "suspect"),
        ("busy", 2, 2.2, "healthy"),
        ("busy", 3, 1.9, "healthy"),
        ("busy", 3, 2.0, "suspect"),
        ("livelock", 2, 1.0, "suspect"),
        ("proven", 0, 0.0, "suspect"),
    ],
)
def test_a_suspicion_needs_enough_samples(
    certainty: str, samples: int, span_s: float, kind: str
) -> None:
    assert _decide(certainty, 7.0, samples=samples, span_s=span_s) == kind


def test_samples_from_before_the_last_progress_raise_no_suspicion() -> None:
    assert _decide("idle", 5.0, span_s=6.0) == "healthy"


def test_nobody_is_suspected_for_whom_nobody_waits() -> None:
    assert _decide("idle", 5.0, waited_for=False) == "healthy"
    assert _decide("moving", 1e6, waited_for=False) == "healthy"


@pytest.mark.parametrize(
    ("certainty", "silence_s", "kind"),
    [("idle", 64.9, "suspect"), ("idle", 65.0, "hang"), ("proven", 10.0, "hang")],
)
def test_a_wait_that_a_guard_ends_is_no_hang_before_its_limit(
    certainty: str, silence_s: float, kind: str
) -> None:
    assert _decide(certainty, silence_s, goes_on_after_s=60.0) == kind


def test_a_dead_rank_is_dead_and_not_hung() -> None:
    assert _decide("proven", 10.0, gone=True, cause="process_dead") == "dead"
    assert _decide("proven", 10.0, gone=True, cause="rendezvous") == "hang"


def test_a_cause_may_ask_for_more_silence_before_a_suspicion() -> None:
    assert _decide("idle", 5.0, suspect_after_s=8.0) == "healthy"
