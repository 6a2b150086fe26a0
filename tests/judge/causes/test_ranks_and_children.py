"""Ranks that wait alone, in native code, or for a child that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_BARRIER, IN_LOAD, job, look, rank, user, waiting_for
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import ThreadStack

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessLook
    from lightning_hangcheck.model.verdict import Verdict


@pytest.mark.parametrize(
    ("seen", "world_size", "who", "for_whom"),
    [
        (1, 2, "rank 0 has waited in barrier", "it is unknown for whom: not all ranks were seen"),
        (2, 8, "all 2 ranks have waited in", "it is unknown for whom: not all ranks were seen"),
        (2, 2, "all 2 ranks have waited in", "it is unknown for whom"),
    ],
)
def test_ranks_that_wait_alike_are_counted_and_the_unseen_not_forgotten(
    seen: int, world_size: int, who: str, for_whom: str
) -> None:
    waiting = (rank(number, IN_BARRIER, silent=400.0) for number in range(seen))
    verdict = judge(job(*waiting, world_size=world_size))
    assert (verdict.verdict, verdict.cause) == ("hang", "unknown")
    assert verdict.summary.startswith(who)
    assert verdict.summary.endswith(for_whom)


WAITS = rank(0, IN_ALL_REDUCE)


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (("os_read", "read"), ["in native code: os_read > read"]),
        (
            ("at::native::item", "cudaStreamSynchronize", "ioctl"),
            [
                "waits for its GPU in cudaStreamSynchronize, in native code: "
                "at::native::item > cudaStreamSynchronize > ioctl"
            ],
        ),
        ((), []),
    ],
)
def test_native_calls_are_told_where_they_were_read(
    calls: tuple[str, ...], told: list[str]
) -> None:
    view = rank(1, IN_LOAD)
    (own,) = view.processes
    newest = replace(own.samples[-1], native_calls=calls)
    seen = replace(own, samples=(*own.samples[:-1], newest))
    verdict = judge(job(WAITS, replace(view, processes=(seen,))))
    assert (verdict.culprits, verdict.cause) == ((1,), "rank_stalled")
    assert [item.text for item in verdict.evidence if item.kind == "native"] == told


QUEUE = waiting_for("pipe", "read", "pipe:[8]", 701)
EVENT = waiting_for("shared", "futex", "memory:[00:1c:8]")
IDLE_ACTOR = look(IN_LOAD, pid=701, role="worker", **waiting_for("pipe", "read", "pipe:[9]", 101))


def ended(exit_code: int | None) -> ProcessLook:
    """A child that has ended, and whose parent has not asked how."""
    seen = look(IN_LOAD, pid=700, role="child", state="Z")
    samples = []
    for one in seen.samples:
        assert one.kernel is not None
        samples.append(replace(one, stack=None, kernel=replace(one.kernel, exit_code=exit_code)))
    return replace(seen, samples=tuple(samples))


def with_supervisor(seen: ProcessLook) -> ProcessLook:
    """The process with a thread that looks after its children now and then."""
    thread, samples = ThreadStack(tid=9, frames=(user("supervise", 24),)), []
    for one in seen.samples:
        assert one.stack is not None
        stack = replace(one.stack, threads=(*one.stack.threads, thread))
        samples.append(replace(one, stack=stack))
    return replace(seen, samples=tuple(samples))


def told(*children: ProcessLook, silent: float = 6.0, **waits: object) -> Verdict:
    """What is said of rank 1, for which rank 0 waits."""
    stuck = rank(1, IN_LOAD, children=list(children), silent=silent, **waits)
    return judge(job(rank(0, IN_BARRIER, silent=silent), stuck))


@pytest.mark.parametrize(
    ("exit_code", "words"), [(-9, "was killed by SIGKILL"), (1, "exited with code 1")]
)
def test_a_child_that_failed_is_told_where_its_queue_is_waited_for(
    exit_code: int, words: str
) -> None:
    verdict = told(ended(exit_code), IDLE_ACTOR, **QUEUE)
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "process_dead")
    assert f"its child pid 700 {words}" in verdict.summary


def test_a_thread_that_looks_after_the_children_may_replace_it() -> None:
    stuck = rank(1, IN_LOAD, children=[ended(-9), IDLE_ACTOR], silent=40.0, **QUEUE)
    own, *children = stuck.processes
    supervised = (with_supervisor(own), *children)
    verdict = judge(job(rank(0, IN_BARRIER, silent=40.0), replace(stuck, processes=supervised)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("suspect", (1,), "process_dead")


def test_a_child_that_waits_for_something_of_its_own_may_still_bring_it() -> None:
    computes_natively = look(IN_LOAD, pid=701, role="worker")
    for silent, kind in ((6.0, "suspect"), (31.0, "hang")):
        verdict = told(ended(-9), computes_natively, silent=silent, **QUEUE)
        assert (verdict.verdict, verdict.cause) == (kind, "process_dead")


def test_an_event_that_nobody_is_left_to_set_is_never_set() -> None:
    verdict = told(ended(1), **EVENT)
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "process_dead")


def test_one_that_ended_well_or_may_not_be_asked_about_is_no_cause() -> None:
    assert told(ended(None), IDLE_ACTOR, silent=40.0, **QUEUE).cause == "rank_stalled"


def test_a_child_that_works_may_still_bring_it() -> None:
    works = look(IN_LOAD, pid=701, role="worker", cpu=1.0)
    assert told(ended(-9), works, silent=40.0, **QUEUE).cause != "process_dead"


def test_who_waits_for_somebody_else_does_not_wait_for_the_child() -> None:
    remote = waiting_for("socket", "recvfrom", "10.0.0.1:443")
    assert told(ended(-9), silent=40.0, **remote).cause == "network_wait"
