"""Connections, files, children and input that a rank waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import (
    IN_BARRIER,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    MAIN,
    STDLIB,
    job,
    look,
    rank,
    torch,
    user,
    waiting_for,
    worker,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import (
    PAGE_FAULT,
    Frame,
    ProcessLook,
)
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case

WAITS = rank(0, IN_BARRIER)
IN_SAVE = (MAIN, user("save_weights", 70), torch("save", "serialization.py"))
IN_QUEUE = (MAIN, user("load", 41), Frame("Queue.get", f"{STDLIB}/queue.py", 171))


def told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause


@pytest.mark.parametrize(
    ("call", "words"),
    [("recvfrom", "does not answer"), ("connect", "does not accept the connection")],
)
def test_a_remote_end_that_is_silent_is_named(call: str, words: str) -> None:
    asks = rank(1, IN_LOAD, silent=300.0, **waiting_for("socket", call, "10.0.0.1:443"))
    verdict = judge(job(WAITS, asks))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "network_wait")
    assert "for 10.0.0.1:443" in verdict.summary
    assert words in verdict.summary
    assert Edge("rank:1", "host:10.0.0.1:443", f"in {call}") in verdict.wait_for


def test_a_remote_end_that_is_a_rank_is_the_culprit() -> None:
    asks = rank(1, IN_LOAD, **waiting_for("socket", "recvfrom", "127.0.0.1:80", 102))
    case = job(WAITS, asks, rank(2, IN_QUEUE))
    assert told(case) == ("hang", (2,), (0, 1), "rank_stalled")


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_a_rank_that_waits_at_a_pipe_leads_to_the_one_at_its_other_end(kind: str) -> None:
    """A service sits there as long as nobody asks, but here nobody is left who could."""
    asks = rank(1, IN_LOAD, **waiting_for(kind, "read", "127.0.0.1:80", 100))
    assert told(job(rank(0, IN_QUEUE), asks)) == ("hang", (0,), (1,), "rank_stalled")
    works = rank(0, IN_QUEUE, cpu=1.0)
    assert judge(job(works, asks)).verdict == "healthy"


def test_one_that_accepts_connections_waits_for_nobody_by_name() -> None:
    serves = rank(1, IN_LOAD, **waiting_for("socket", "accept4", "127.0.0.1:80"))
    assert told(job(WAITS, serves))[3] == "rank_stalled"


@pytest.mark.parametrize(("carried", "kind"), [(0, "hang"), (4_000, "slow")])
def test_a_slow_download_is_no_hang(carried: int, kind: str) -> None:
    asks = rank(1, IN_LOAD, **waiting_for("socket", "recvfrom", "10.0.0.1:443"))
    own = asks.processes[0]
    samples = tuple(
        msgspec.structs.replace(
            one, kernel=msgspec.structs.replace(one.kernel, network_bytes=number * carried)
        )
        for number, one in enumerate(own.samples)
        if one.kernel is not None
    )
    loading = msgspec.structs.replace(
        asks,
        silent_for_s=301.0,
        idle_for_s=301.0,
        processes=(msgspec.structs.replace(own, samples=samples),),
    )
    assert judge(job(WAITS, loading)).verdict == kind


@pytest.mark.parametrize(
    ("frames", "cause"), [(IN_LOAD, "filesystem_wait"), (IN_SAVE, "checkpoint_io")]
)
@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_a_file_that_blocks_is_named(frames: tuple[Frame, ...], cause: str, kind: str) -> None:
    blocked = waiting_for(kind, "write", "/nfs/a.ckpt")
    verdict = judge(job(WAITS, rank(1, frames, silent=300.0, **blocked)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), cause)
    assert judge(job(WAITS, rank(1, frames, silent=299.0, **blocked))).verdict == "suspect"
    assert "in write of" in verdict.summary
    assert "/nfs/a.ckpt" in verdict.summary
    assert Edge("rank:0", "rank:1", "in barrier") in verdict.wait_for


def test_a_page_that_does_not_come_is_a_wait_for_the_file_system() -> None:
    mapped = rank(1, IN_LOAD, silent=300.0, state="D", **waiting_for("file", PAGE_FAULT, ""))
    verdict = judge(job(WAITS, mapped))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "filesystem_wait")
    assert "reading a page of a file that is mapped into its memory" in verdict.summary


def child(pid: int, **fields: Any) -> ProcessLook:
    """A child that is another program than Python."""
    seen = look((), pid=pid, role="child", **fields)
    samples = tuple(msgspec.structs.replace(one, stack=None) for one in seen.samples)
    return msgspec.structs.replace(seen, samples=samples)


def test_a_rank_and_its_child_that_wait_for_each_other_are_proven() -> None:
    writes = child(700, **waiting_for("pipe", "write", "pipe:[9]", 101))
    waits = waiting_for("process", "wait4", "700", 700)
    case = job(
        rank(0, IN_BARRIER, silent=11.0), rank(1, IN_LOAD, silent=11.0, children=[writes], **waits)
    )
    assert told(case) == ("hang", (1,), (0,), "rank_stalled")
    verdict = judge(case)
    assert "its child pid 700 (python), which waits for it at the other end" in verdict.summary
    assert "communicate(" in verdict.remedies[0].text


@pytest.mark.parametrize("way_out", ["10.0.0.1:22", ""])
def test_a_child_that_something_else_could_wake_proves_nothing(way_out: str) -> None:
    pipe = waiting_for("pipe", "poll", "pipe:[9]", 101)["waits_for"]
    elsewhere = waiting_for("socket", "poll", way_out)["waits_for"]
    polls = child(700, waits_for=(*pipe, *elsewhere))
    waits = waiting_for("process", "wait4", "700", 700)
    case = job(
        rank(0, IN_BARRIER, silent=11.0), rank(1, IN_LOAD, silent=11.0, children=[polls], **waits)
    )
    assert told(case)[0] == "suspect"


def test_a_child_that_only_sleeps_proves_nothing() -> None:
    waits = waiting_for("process", "wait4", "700", 700)
    idle = rank(1, IN_LOAD, silent=11.0, children=[child(700)], **waits)
    assert told(job(rank(0, IN_BARRIER, silent=11.0), idle))[0] == "suspect"


def test_a_child_that_works_is_no_alarm() -> None:
    waits = waiting_for("process", "wait4", "700", 700)
    busy = rank(1, IN_LOAD, children=[child(700, cpu=1.0)], **waits)
    assert told(job(WAITS, busy))[0] == "healthy"


def test_an_input_that_nobody_gives_is_told() -> None:
    verdict = judge(job(WAITS, rank(1, IN_LOAD, **waiting_for("pipe", "read", "pipe:[9]", 101))))
    assert verdict.cause == "rank_stalled"
    assert "waiting for input from pipe:[9]" in verdict.summary
    assert "it asks for input" in verdict.remedies[0].text


def test_what_a_stuck_worker_waits_for_stands_in_the_evidence() -> None:
    locked = worker(0, IN_GETITEM, **waiting_for("lock", "flock", "/l", 4711))
    verdict = judge(job(WAITS, rank(1, IN_LOADER, children=[locked])))
    assert verdict.cause == "dataloader_worker"
    assert "in flock for /l, held by pid 4711" in "\n".join(one.text for one in verdict.evidence)


def test_ranks_may_wait_for_the_same_processes_beside_others_of_their_own() -> None:
    def polls(*own: int) -> dict[str, Any]:
        pipes = [("pipe:[1]", own), ("pipe:[2]", (700, 701))]
        targets = [waiting_for("pipe", "poll", name, *pids)["waits_for"] for name, pids in pipes]
        return {"waits_for": tuple(one for found in targets for one in found)}

    verdict = judge(job(rank(0, IN_LOAD, **polls(800)), rank(1, IN_LOAD, **polls(801))))
    assert (verdict.culprits, verdict.cause) == ((0, 1), "rank_stalled")
    awaited = {(edge.source, edge.target) for edge in verdict.wait_for}
    assert awaited == {
        *(("rank:0", f"pid:{pid}") for pid in (800, 700, 701)),
        *(("rank:1", f"pid:{pid}") for pid in (801, 700, 701)),
    }
