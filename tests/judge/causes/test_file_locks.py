"""Locks on files: who waits for one, who holds it, and when that is a proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import (
    IN_BARRIER,
    IN_LOAD,
    IN_WANDB,
    MAIN,
    STDLIB,
    job,
    look,
    rank,
    torch,
    user,
    waiting_for,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Frame, Holder, WaitTarget
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView

WAITS = rank(0, IN_BARRIER)
IN_FROM_PRETRAINED = (MAIN, torch("load", "serialization.py"))
IN_QUEUE = (MAIN, user("load", 41), Frame("Queue.get", f"{STDLIB}/queue.py", 171))


def told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause


@pytest.mark.parametrize("call", ["flock", "fcntl", "filelock"])
def test_a_lock_whose_holder_waits_for_the_waiter_is_a_proven_cycle(call: str) -> None:
    wants = rank(1, IN_LOAD, silent=11.0, **waiting_for("lock", call, "/data/hub.lock", 100))
    verdict = judge(job(rank(0, IN_BARRIER, silent=11.0), wants))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0, 1), "file_lock")
    assert verdict.summary == (
        "rank 1 has waited 11 s in load (demo/train.py:41) for the lock on /data/hub.lock, "
        "which rank 0 holds while it waits in barrier in step (demo/train.py:88)"
    )
    assert Edge("rank:1", "file:/data/hub.lock", "for the lock") in verdict.wait_for
    assert Edge("file:/data/hub.lock", "rank:0", "held by") in verdict.wait_for
    assert verdict.remedies[0].text.startswith("demo/train.py:41: let go of the lock")


def test_a_cycle_through_a_lock_that_is_only_supposed_has_the_patience_of_idleness() -> None:
    sleeps = waiting_for("lock", "sleep", "/data/index.sqlite", 100)
    early = job(rank(0, IN_BARRIER, silent=11.0), rank(1, IN_LOAD, silent=11.0, **sleeps))
    assert told(early)[0] == "suspect"
    assert told(job(WAITS, rank(1, IN_LOAD, **sleeps))) == ("hang", (0, 1), (), "file_lock")


def test_a_cycle_is_not_proven_before_its_time() -> None:
    wants = rank(1, IN_LOAD, silent=4.9, **waiting_for("lock", "flock", "/l", 100))
    assert told(job(rank(0, IN_BARRIER, silent=4.9), wants))[0] == "suspect"
    assert told(job(rank(0, IN_BARRIER, silent=300.0), wants))[0] == "suspect"


def test_a_rank_that_waited_long_before_the_cycle_closed_is_still_told_by_its_lock() -> None:
    wants = rank(1, IN_LOAD, silent=31.0, **waiting_for("lock", "flock", "/l", 100))
    case = job(rank(0, IN_BARRIER, silent=3.0), wants)
    assert told(case) == ("hang", (0, 1), (), "file_lock")


def test_a_lock_whose_holder_works_is_no_alarm() -> None:
    wants = rank(1, IN_LOAD, silent=25.0, **waiting_for("lock", "flock", "/l", 100))
    moves = rank(0, IN_LOAD, bytes_s=10**6, silent=25.0)
    assert judge(job(moves, wants)).verdict == "healthy"


def test_a_lock_whose_holder_stands_still_makes_the_holder_the_culprit() -> None:
    wants = rank(1, IN_LOAD, **waiting_for("lock", "flock", "/l", 100))
    assert told(job(rank(0, IN_QUEUE), wants)) == ("hang", (0,), (1,), "rank_stalled")


def test_a_rank_that_waits_for_its_own_lock_is_proven() -> None:
    wants = rank(1, IN_LOAD, silent=11.0, **waiting_for("lock", "flock", "/l", 101))
    case = job(rank(0, IN_BARRIER, silent=11.0), wants)
    assert told(case) == ("hang", (1,), (0,), "file_lock")
    assert "which it holds itself" in judge(case).summary


def test_a_lock_of_a_process_outside_the_job_has_the_patience_of_idleness() -> None:
    wants = rank(1, IN_LOAD, **waiting_for("lock", "flock", "/l", 4711))
    assert told(job(WAITS, wants)) == ("hang", (1,), (0,), "file_lock")
    assert (
        "which pid 4711 (python), a process outside the job, holds"
        in judge(job(WAITS, wants)).summary
    )
    early = rank(1, IN_LOAD, silent=29.0, **waiting_for("lock", "flock", "/l", 4711))
    assert told(job(WAITS, early))[0] == "suspect"


def test_a_lock_of_a_process_outside_that_works_is_slow() -> None:
    wants = rank(1, IN_LOAD, silent=301.0, **waiting_for("lock", "flock", "/l", 4711))
    works = with_newest(wants, **waiting_for("lock", "flock", "/l", 4711, cpu_s=1.0))
    assert judge(job(WAITS, works)).verdict == "slow"


def test_ranks_that_wait_for_a_lock_each_are_named_together() -> None:
    wants = [
        rank(number, IN_LOAD, **waiting_for("lock", "flock", f"/l{number}", 4711 + number))
        for number in (0, 1)
    ]
    verdict = judge(job(*wants))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0, 1), "file_lock")
    assert verdict.summary.endswith("; rank 1 waits for another lock")


def with_newest(view: RankView, **fields: Any) -> RankView:
    """The rank, with other fields of its main thread in the newest sample."""
    own, *others = view.processes
    *older, newest = own.samples
    assert newest.kernel is not None
    main = msgspec.structs.replace(newest.kernel.threads[0], **fields)
    kernel = msgspec.structs.replace(newest.kernel, threads=(main,))
    samples = (*older, msgspec.structs.replace(newest, kernel=kernel))
    return msgspec.structs.replace(
        view, processes=(msgspec.structs.replace(own, samples=samples), *others)
    )


def test_a_lock_that_nobody_holds_is_called_stale() -> None:
    verdict = judge(
        job(WAITS, rank(1, IN_LOAD, silent=300.0, **waiting_for("lock", "filelock", "/l")))
    )
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "file_lock")
    assert "a stale lock file" in verdict.summary
    assert "delete the lock file" in verdict.remedies[0].text


def test_a_lock_is_more_specific_than_loading_and_the_logger_than_the_network() -> None:
    loads = rank(1, IN_FROM_PRETRAINED, **waiting_for("lock", "filelock", "/l"))
    assert told(job(WAITS, loads))[3] == "file_lock"
    assert told(job(WAITS, rank(1, IN_FROM_PRETRAINED)))[3] == "model_load"
    logs = rank(1, IN_WANDB, **waiting_for("socket", "recvfrom", "10.0.0.1:443"))
    assert told(job(WAITS, logs))[3] == "logger_init"


def test_a_target_that_changes_is_no_wait() -> None:
    wants = rank(1, IN_LOAD, silent=31.0)
    assert told(job(WAITS, with_newest(wants, **waiting_for("lock", "flock", "/l", 100))))[3] == (
        "rank_stalled"
    )


def marker(*pids: int, abandoned: bool = False) -> dict[str, Any]:
    """Fields of a rank that asks again and again whether a file is gone."""
    holders = tuple(Holder(pid=pid) for pid in pids)
    lock = WaitTarget(
        call="exists", kind="lock", name="/data/a.lock", holders=holders, abandoned=abandoned
    )
    return {"waits_for": (lock, WaitTarget(call="clock_nanosleep", kind="time"))}


@pytest.mark.parametrize(
    ("silent", "abandoned", "kind"),
    [
        (2.9, True, "healthy"),
        (3.0, True, "suspect"),
        (5.0, True, "hang"),
        (9.9, False, "healthy"),
        (10.0, False, "suspect"),
        (299.0, False, "suspect"),
        (300.0, False, "hang"),
    ],
)
def test_a_marker_whose_maker_is_gone_is_ended_by_nobody(
    silent: float, abandoned: bool, kind: str
) -> None:
    waits = rank(0, IN_BARRIER, silent=silent)
    polls = rank(1, IN_LOAD, silent=silent, **marker(abandoned=abandoned))
    verdict = judge(job(waits, polls))
    assert verdict.verdict == kind
    if kind != "healthy":
        assert (verdict.culprits, verdict.cause) == ((1,), "file_lock")
        why = (
            "left behind by a process that is gone"
            if abandoned
            else "which no visible process of this machine holds"
        )
        assert why in verdict.summary


def test_a_marker_of_another_rank_leads_to_that_rank() -> None:
    maker = rank(0, IN_QUEUE, silent=40.0)
    case = job(maker, rank(1, IN_LOAD, silent=40.0, **marker(100)))
    assert told(case)[:2] == ("hang", (0,))


def test_who_polls_for_a_marker_of_nobody_known_waits_for_a_rank_that_is_stuck_otherwise() -> None:
    maker = rank(0, IN_QUEUE, silent=40.0)
    assert told(job(maker, rank(1, IN_LOAD, silent=40.0, **marker())))[:2] == ("hang", (0,))
    abandoned = rank(1, IN_LOAD, silent=40.0, **marker(abandoned=True))
    assert told(job(maker, abandoned))[:2] == ("hang", (0, 1))


def test_a_child_that_works_may_be_the_maker_of_a_marker_of_nobody_known() -> None:
    builds = look((), pid=901, role="child", cpu=1.0)
    case = job(rank(0, IN_LOAD, silent=60.0, children=(builds,), **marker()), world_size=1)
    assert told(case)[0] == "healthy"
