"""Each cause, from a case of a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_CONNECT,
    IN_INIT,
    IN_LOAD,
    IN_LOADER,
    IN_WANDB,
    gone,
    job,
    rank,
)
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, OpenSection
from lightning_hangcheck.model.evidence import Frame, Gap, LocalValues, WaitTarget
from lightning_hangcheck.model.slugs import phase_of_name
from lightning_hangcheck.model.verdict import Gap as ToldGap

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

WAITS = rank(0, IN_ALL_REDUCE)


def _told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause


def _facts(verdict: Verdict) -> str:
    return "\n".join(item.text for item in verdict.evidence)


def test_a_rank_that_computed_silently_is_idle_only_since_it_stopped_computing() -> None:
    computed = replace(rank(1, IN_LOAD, silent=200.0), idle_for_s=5.0)
    verdict = judge(job(WAITS, computed))
    assert (verdict.verdict, verdict.stalled_for_s) == ("suspect", 5.0)


def test_a_rank_that_was_stopped_twice_counts_from_the_second_time() -> None:
    """It ran between, for a moment that no sample met."""
    again = replace(rank(1, IN_LOAD, state="T", silent=21.0), stopped_for_s=7.0)
    assert _told(job(WAITS, again))[0] == "suspect"


def test_a_debugger_that_comes_to_a_silent_rank_has_not_stopped_it_all_the_time() -> None:
    silent = rank(1, IN_LOAD, state="t", silent=200.0)
    own = silent.processes[0]
    before = rank(1, IN_LOAD).processes[0].samples[:1]
    looks = replace(own, samples=(*before, *own.samples[1:]))
    debugged = replace(silent, processes=(looks,))
    assert judge(job(WAITS, debugged)).cause != "process_stopped"
    assert judge(job(WAITS, silent)).cause == "process_stopped"


def test_the_first_of_several_dead_ranks_is_named_first() -> None:
    verdict = judge(job(WAITS, gone(1, 1, order=1), gone(2, -11, order=0)))
    assert verdict.culprits == (2, 1)
    assert "rank 2 was killed by SIGSEGV" in verdict.summary


@pytest.mark.parametrize(
    ("section", "frames", "cause", "confidence"),
    [
        ("WandbLogger constructor", IN_LOAD, "logger_init", 0.75),
        ("Datalogger sync", IN_LOAD, "rank_stalled", 0.85),
        ("upload wandb artifact", IN_LOAD, "rank_stalled", 0.85),
        ("dataset logger model weights", IN_LOAD, "rank_stalled", 0.85),
        ("Datalogger sync", IN_WANDB, "logger_init", 0.9),
        ("load model", IN_LOAD, "model_load", 0.6),
        ("upload model", IN_LOAD, "rank_stalled", 0.85),
    ],
)
def test_a_cause_needs_the_deed_and_a_name_tells_less_than_a_call(
    section: str, frames: tuple[Any, ...], cause: str, confidence: float
) -> None:
    beat = Beat(pid=101, beats=9, phase=phase_of_name(section), sections=(OpenSection(section, 0),))
    verdict = judge(job(WAITS, rank(1, frames, beat=beat)))
    assert (verdict.cause, verdict.confidence) == (cause, confidence)


def test_a_loader_without_workers_is_told() -> None:
    verdict = judge(job(WAITS, rank(1, IN_LOADER)))
    assert verdict.cause == "dataloader_worker"
    assert "none of its worker processes is left" in verdict.summary


def test_all_ranks_in_one_collective_may_be_at_work_for_long() -> None:
    early = [rank(n, IN_ALL_REDUCE, silent=200.0) for n in range(2)]
    late = [rank(n, IN_ALL_REDUCE, silent=300.0) for n in range(2)]
    assert judge(job(*early)).verdict == "healthy"
    assert _told(job(*late)) == ("hang", (0, 1), (), "unknown")


def test_a_moving_rank_is_slow_however_silent() -> None:
    moves = rank(1, IN_LOAD, bytes_s=10**6, silent=5_000.0)
    assert _told(job(WAITS, moves)) == ("slow", (1,), (0,), "slow_progress")


def test_a_rank_that_cannot_be_seen_is_unknown_and_a_gap() -> None:
    refused = Gap("stack of pid 101", 1, "py-spy may not read it", "stack", "run as root")
    verdict = judge(job(rank(0, silent=301.0), rank(1, silent=301.0), gaps=(refused,)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0, 1), "unknown")
    assert ToldGap("stack of pid 101", 1, "py-spy may not read it; run as root") in verdict.gaps
    assert "activity of rank 0" in [gap.what for gap in verdict.gaps]
    assert verdict.ranks[0].state == "unseen"


def test_an_open_logger_section_is_told_even_of_a_rank_that_cannot_be_seen() -> None:
    beat = Beat(pid=100, beats=5, sections=(OpenSection("WandbLogger constructor", 0),))
    assert _told(job(rank(0, silent=301.0, beat=beat)))[3] == "logger_init"


@pytest.mark.parametrize(("limit_s", "kind"), [(None, "hang"), (60.0, "suspect")])
def test_a_culprit_in_a_guard_that_goes_on_by_itself_is_only_suspected(
    limit_s: float | None, kind: str
) -> None:
    sections = (OpenSection("wandb run creation", 0, goes_on_after_s=limit_s),)
    stuck = rank(1, IN_LOAD, silent=40.0, beat=Beat(pid=101, beats=5, sections=sections))
    assert _told(job(rank(0, IN_ALL_REDUCE, silent=40.0), stuck))[0] == kind


def test_two_processes_of_one_rank_are_a_gap() -> None:
    verdict = judge(job(rank(0, IN_LOAD, silent=0.1), rank(0, IN_LOAD, silent=0.1)))
    assert [gap.rank for gap in verdict.gaps] == [0]
    assert len(verdict.ranks) == 1


def test_of_the_open_sections_the_main_threads_come_last() -> None:
    sections = (OpenSection("fetch", 0), OpenSection("upload", 1, in_main_thread=False))
    verdict = judge(job(WAITS, rank(1, IN_LOAD, beat=Beat(pid=101, beats=5, sections=sections))))
    assert verdict.ranks[1].open_sections == ("upload", "fetch")
    assert "inside section 'fetch'" in _facts(verdict)


def test_evidence_that_no_rank_has_is_a_gap_that_names_what_nobody_looked_for() -> None:
    unseen = judge(job(rank(0, silent=301.0), rank(1, silent=301.0)))
    gaps = {gap.what: gap.why for gap in unseen.gaps}
    assert unseen.cause == "unknown"
    assert "rank_stalled" in gaps["Python stacks"]
    assert "file_lock" in gaps["the kernel's view of processes"]
    assert "process_stopped" not in "".join(gaps.values())  # it needs neither
    stuck = judge(job(WAITS, rank(1, IN_LOAD)))
    assert not gaps.keys() & {gap.what for gap in stuck.gaps}


def test_what_a_more_specific_rule_explains_is_not_called_sooner_as_unknown() -> None:
    """Nobody comes to the store where rank 1 looks: an outsider may, so it is only suspected."""
    lost, waits = rank(1, IN_CONNECT, silent=60.0), rank(0, IN_INIT, silent=60.0)
    verdict = judge(job(waits, lost, local_world_size=None))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("suspect", (1,), "rendezvous")


def test_the_exception_that_a_stuck_rank_handles_is_evidence() -> None:
    beat = Beat(pid=101, rank=1, handling="ValueError: no such split in check (train.py:12)")
    verdict = judge(job(rank(0, IN_BARRIER), rank(1, IN_LOAD, beat=beat)))
    told = [one.text for one in verdict.evidence if one.kind == "exception"]
    assert told == [f"its main thread handles {beat.handling}"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ConnectionRefusedError: [Errno 111] refused in fetch (train.py:12)", "network_wait"),
        ("MaxRetryError: x (from ConnectionRefusedError: [Errno 111] refused)", "network_wait"),
        ("ValueError: no such split in check (train.py:12)", "rank_stalled"),
    ],
)
def test_who_sleeps_between_tries_that_a_remote_end_refuses_waits_for_that(
    error: str, cause: str
) -> None:
    beat = Beat(pid=101, rank=1, handling=error)
    sleep = {"waits_for": (WaitTarget(call="clock_nanosleep", kind="time"),)}
    verdict = judge(job(WAITS, rank(1, IN_LOAD, beat=beat, silent=20.0, **sleep)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("suspect", (1,), cause)


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
