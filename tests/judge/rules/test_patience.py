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


TABLE = [
    *(("nobody", pace, 3.0, 5.0) for pace in (None, SLOW)),
    ("person", None, 3.0, 10.0),
    *(("inside", pace, 5.0, 30.0) for pace in (None, FAST)),
    ("inside", SLOW, 8.0, 30.0),
    *((one, None, 10.0, 300.0) for one in ("outside", "circles", "announced", "last_call")),
    *((one, FAST, 10.0, 300.0) for one in ("outside", "circles")),
    ("circles", FRESH, 10.0, 300.0),
    ("known_pace", FAST, 10.0, 120.0),
    ("known_pace", SLOW, 20.0, 120.0),
    ("known_pace", SLOWEST, 40.0, 160.0),
    *(("unknown_pace", pace, None, 300.0) for pace in (None, FRESH)),
    ("never_coming", None, 10.0, 15.0),
    *(("moving", pace, None, 120.0) for pace in (FAST, SLOW)),
    ("moving", None, None, 300.0),
]
"""Who could end it, the pace, and the seconds from which on it is suspected, and called a hang."""


@pytest.mark.parametrize(("ended_by", "pace", "suspect", "hang"), TABLE)
def test_the_table(ended_by: str, pace: Pace | None, suspect: float | None, hang: float) -> None:
    """A rank that moves is slow, and no hang."""
    if suspect is not None:
        assert _decide(ended_by, suspect - 0.1, pace=pace) == "healthy"
        assert _decide(ended_by, suspect, pace=pace) == "suspect"
    before = "healthy" if suspect is None else "suspect"
    assert _decide(ended_by, hang - 0.1, pace=pace) == before
    assert _decide(ended_by, hang, pace=pace) == ("slow" if ended_by == "moving" else "hang")


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
