"""What torch itself counts of waiting threads is among the facts about a culprit."""

from __future__ import annotations

from cases import IN_ALL_REDUCE, IN_LOAD, job, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.flight import FlightRecord

WAITS = rank(0, IN_ALL_REDUCE)


def test_torchs_own_waits_are_told_and_draw_no_edge() -> None:
    record = FlightRecord(taken_ns=1, waits={"TCPStore__get": 1, "TCPStore__wait": 2})
    verdict = judge(job(WAITS, replace(rank(1, IN_LOAD), flight=record)))
    assert (verdict.culprits, verdict.cause) == ((1,), "rank_stalled")
    assert [item.text for item in verdict.evidence if item.kind == "torch"] == [
        "torch counts threads that wait: 1 in TCPStore__get, 2 in TCPStore__wait"
    ]


def test_without_a_wait_nothing_is_told() -> None:
    verdict = judge(job(WAITS, replace(rank(1, IN_LOAD), flight=FlightRecord(taken_ns=1))))
    assert "torch" not in {item.kind for item in verdict.evidence}
