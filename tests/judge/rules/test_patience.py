"""The contract's patience table."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hangcheck.judge.patience import decide
from lightning_hangcheck.judge.rule import Finding
from lightning_hangcheck.model.case import Limits, Pace

LIMITS = Limits()
FAST = Pace(longest_pause_s=0.5, pauses=9)
SLOW = Pace(longest_pause_s=4.0, pauses=9)
SLOWEST = Pace(longest_pause_s=8.0, pauses=9)
FRESH = Pace(longest_pause_s=4.0, pauses=2)


def _decide(ended_by: Any, silence_s: float, limits: Limits = LIMITS, **fields: Any) -> str:
    finding = Finding(
        **{
            "cause": "unknown",
            "culprits": (1,),
            "ended_by": ended_by,
            "confidence": 0.5,
            "silence_s": silence_s,
            "sentence": "",
            "waited_for": True,
            "samples": 3,
            "span_s": 2.2,
            **fields,
        }
    )
    return decide(finding, limits)


@pytest.mark.parametrize(
    ("ended_by", "silence_s", "pace", "kind"),
    [
        ("nobody", 2.9, None, "healthy"),
        ("nobody", 3.0, SLOW, "suspect"),
        ("nobody", 4.9, None, "suspect"),
        ("nobody", 5.0, SLOW, "hang"),
        ("person", 2.9, None, "healthy"),
        ("person", 3.0, None, "suspect"),
        ("person", 9.9, None, "suspect"),
        ("person", 10.0, None, "hang"),
        ("inside", 4.9, None, "healthy"),
        ("inside", 5.0, FAST, "suspect"),
        ("inside", 29.9, None, "suspect"),
        ("inside", 30.0, None, "hang"),
        ("inside", 7.9, SLOW, "healthy"),
        ("inside", 8.0, SLOW, "suspect"),
        ("inside", 30.0, SLOW, "hang"),
        ("outside", 9.9, None, "healthy"),
        ("outside", 10.0, FAST, "suspect"),
        ("outside", 299.0, FAST, "suspect"),
        ("outside", 300.0, None, "hang"),
        ("known_pace", 9.9, FAST, "healthy"),
        ("known_pace", 10.0, FAST, "suspect"),
        ("known_pace", 19.0, SLOW, "healthy"),
        ("known_pace", 20.0, SLOW, "suspect"),
        ("known_pace", 119.9, FAST, "suspect"),
        ("known_pace", 120.0, FAST, "hang"),
        ("known_pace", 159.9, SLOWEST, "suspect"),
        ("known_pace", 160.0, SLOWEST, "hang"),
        ("circles", 9.9, FRESH, "healthy"),
        ("circles", 10.0, None, "suspect"),
        ("circles", 299.0, FAST, "suspect"),
        ("circles", 300.0, FAST, "hang"),
        ("unknown_pace", 299.0, None, "healthy"),
        ("unknown_pace", 299.0, FRESH, "healthy"),
        ("unknown_pace", 300.0, None, "hang"),
        ("announced", 9.9, None, "healthy"),
        ("announced", 10.0, None, "suspect"),
        ("announced", 299.0, None, "suspect"),
        ("announced", 300.0, None, "hang"),
        ("last_call", 10.0, None, "suspect"),
        ("never_coming", 9.9, None, "healthy"),
        ("never_coming", 10.0, None, "suspect"),
        ("never_coming", 15.0, None, "hang"),
        ("moving", 119.9, FAST, "healthy"),
        ("moving", 120.0, FAST, "slow"),
        ("moving", 79.9, SLOW, "healthy"),
        ("moving", 299.0, None, "healthy"),
        ("moving", 1e6, None, "slow"),
    ],
)
def test_the_table(ended_by: str, silence_s: float, pace: Pace | None, kind: str) -> None:
    assert _decide(ended_by, silence_s, pace=pace) == kind


FIGURES = {
    "nobody": ("suspect_proven_after", "proven_after"),
    "person": ("suspect_person_after", "person_after"),
    "inside": ("suspect_idle_after", "idle_after"),
    "outside": ("suspect_outside_after", "stall_timeout"),
    "known_pace": ("suspect_busy_after", "busy_floor"),
    "circles": ("suspect_busy_after", "stall_timeout"),
    "announced": ("suspect_absent_after", "stall_timeout"),
    "last_call": ("suspect_absent_after", "stall_timeout"),
    "never_coming": ("suspect_absent_after", "absent_after"),
}


@pytest.mark.parametrize("ended_by", FIGURES)
def test_each_figure_is_an_option(ended_by: str) -> None:
    suspect, hang = FIGURES[ended_by]
    limits = Limits(**{suspect: 400.0, hang: 500.0})
    assert [_decide(ended_by, silence_s, limits=limits, pace=FAST) for silence_s in (399, 400)] == [
        "healthy",
        "suspect",
    ]
    assert _decide(ended_by, 499.0, limits=limits, pace=FAST) == "suspect"
    assert _decide(ended_by, 500.0, limits=limits, pace=FAST) == "hang"


@pytest.mark.parametrize(
    ("ended_by", "samples", "span_s", "kind"),
    [
        ("inside", 1, 0.0, "healthy"),
        ("inside", 2, 0.7, "healthy"),
        ("inside", 2, 0.8, "suspect"),
        ("outside", 1, 0.0, "healthy"),
        ("known_pace", 2, 2.2, "healthy"),
        ("known_pace", 3, 1.9, "healthy"),
        ("known_pace", 3, 2.0, "suspect"),
        ("circles", 2, 2.2, "healthy"),
        ("nobody", 0, 0.0, "hang"),
        ("announced", 0, 0.0, "suspect"),
    ],
)
def test_a_suspicion_needs_enough_samples(
    ended_by: str, samples: int, span_s: float, kind: str
) -> None:
    assert _decide(ended_by, 12.0, samples=samples, span_s=span_s, pace=FAST) == kind


@pytest.mark.parametrize(
    ("ended_by", "silence_s", "fields", "kind"),
    [
        # samples from before the last progress raise no suspicion
        ("inside", 5.0, {"span_s": 6.0}, "healthy"),
        # nobody is suspected for whom nobody waits
        ("inside", 6.0, {"waited_for": False}, "healthy"),
        ("moving", 1e6, {"waited_for": False}, "healthy"),
        # a wait that a guard ends is no hang before its limit
        ("inside", 64.9, {"goes_on_after_s": 60.0}, "suspect"),
        ("inside", 65.0, {"goes_on_after_s": 60.0}, "hang"),
        ("outside", 300.0, {"goes_on_after_s": 400.0}, "suspect"),
        ("outside", 405.0, {"goes_on_after_s": 400.0}, "hang"),
        ("nobody", 5.0, {"goes_on_after_s": 60.0}, "hang"),
        # a dead rank is dead and not hung
        ("nobody", 5.0, {"gone": True, "cause": "process_dead"}, "dead"),
        ("never_coming", 15.0, {"gone": True, "cause": "rendezvous"}, "hang"),
    ],
)
def test_what_else_decides(
    ended_by: str, silence_s: float, fields: dict[str, Any], kind: str
) -> None:
    assert _decide(ended_by, silence_s, **fields) == kind
