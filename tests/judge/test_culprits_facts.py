"""What stands among the facts about a culprit: torch's own waits, its variables."""

from __future__ import annotations

from cases import IN_ALL_REDUCE, IN_LOAD, gone, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Frame, Gap, LocalValues
from lightning_hangcheck.model.flight import FlightRecord

WAITS = rank(0, IN_ALL_REDUCE)


def test_torchs_own_waits_are_told_and_draw_no_edge() -> None:
    record = FlightRecord(taken_ns=1, waits={"TCPStore__get": 1, "TCPStore__wait": 2})
    verdict = judge(job(WAITS, replace(rank(1, IN_LOAD), flight=record)))
    assert (verdict.culprits, verdict.cause) == ((1,), "rank_stalled")
    assert [item.text for item in verdict.evidence if item.kind == "torch"] == [
        "torch counts threads that wait: 1 in TCPStore__get, 2 in TCPStore__wait"
    ]


INSIDE = Frame("sleep", "/venv/lib/python3.11/site-packages/waiting.py", 3)


def test_variables_are_told_with_the_users_line_and_only_where_they_were_read() -> None:
    view = rank(1, IN_LOAD)
    assert "variables" not in {item.kind for item in judge(job(WAITS, view)).evidence}
    (own,) = view.processes
    values = (
        LocalValues(IN_LOAD[-1], {"path": '"train.bin"', "batch": "17"}),
        LocalValues(INSIDE, {"seconds": "9"}),
    )
    newest = replace(own.samples[-1], local_values=values)
    with_values = replace(own, samples=(*own.samples[:-1], newest))
    verdict = judge(job(WAITS, replace(view, processes=(with_values,))))
    assert [(item.rank, item.text) for item in verdict.evidence if item.kind == "variables"] == [
        (1, 'variables in load (demo/train.py:41): path = "train.bin", batch = 17')
    ]


def test_an_exit_code_that_nobody_saw_is_a_gap() -> None:
    verdict = judge(job(WAITS, gone(1, None)))
    assert verdict.culprits == (1,)
    assert [gap.what for gap in verdict.gaps if gap.rank == 1] == ["exit code"]
    assert "exit code" not in [gap.what for gap in judge(job(WAITS, gone(1, 1))).gaps]


def test_of_a_job_that_ended_well_no_stack_is_missed() -> None:
    gaps = (
        Gap("stack of pid 1", 0, "the process has ended", "stack"),
        Gap("journal rank-0.jsonl", 0, "3 lines were lost", "journal"),
    )
    well = job(gone(0, 0), gone(1, 0), ended=True, exit_code=0, gaps=gaps)
    assert [gap.what for gap in judge(well).gaps] == ["journal rank-0.jsonl"]
    badly = job(gone(0, 0), gone(1, 1), ended=True, exit_code=1, gaps=gaps)
    assert "stack of pid 1" in [gap.what for gap in judge(badly).gaps]


def test_what_a_process_did_is_not_told_of_one_that_is_gone() -> None:
    kinds = {item.kind for item in judge(job(WAITS, gone(1, -9))).evidence if item.rank == 1}
    assert kinds.isdisjoint({"activity", "kernel"})
