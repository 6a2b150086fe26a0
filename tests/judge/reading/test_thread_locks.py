"""Locks within a process, the interpreter's own, and full memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_LOAD,
    LOCKED,
    NOW_NS,
    SECOND,
    STDLIB,
    job,
    rank,
    torch,
    user,
    with_kernel,
    with_lock_owner,
    with_main,
    with_threads,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import (
    Frame,
    MemoryUse,
    ThreadStack,
    ThreadState,
    WaitTarget,
)

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView

WAITS = rank(0, IN_BARRIER)


def told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause


IN_LIBRARY = ThreadStack(tid=204, frames=(torch("run", "utils/data/x.py"),))
PARKED = ThreadStack(tid=203, frames=(Frame("_worker", f"{STDLIB}/concurrent/thread.py", 81),))


def _with_native_thread(view: RankView, wchan: str, call: str) -> RankView:
    """The rank, with one more thread that runs no Python."""
    target = WaitTarget(call=call, kind="time")
    native = ThreadState(tid=299, state="S", cpu_s=0.0, wchan=wchan, waits_for=(target,))
    return with_kernel(view, threads=lambda _, kernel: (*kernel.threads, native))


def test_a_native_thread_that_sleeps_may_call_the_user_back() -> None:
    """Nothing tells what it will do; one of torch's waits for a condition, within a limit."""
    dead = with_threads(rank(1, IN_LOAD, silent=200.0), LOCKED, PARKED)
    sleeper = _with_native_thread(dead, "hrtimer_nanosleep", "clock_nanosleep")
    gone_on = _with_native_thread(dead, "hrtimer_nanosleep", "restart_syscall")
    of_torch = _with_native_thread(dead, "futex_do_wait", "futex")
    assert [told(job(WAITS, one))[0] for one in (sleeper, gone_on)] == ["suspect", "suspect"]
    assert told(job(WAITS, of_torch))[0] == "hang"


def test_a_thread_that_could_still_release_takes_the_proof_away() -> None:
    open_end = with_threads(rank(1, IN_LOAD, silent=11.0), LOCKED, IN_LIBRARY)
    assert told(job(rank(0, IN_BARRIER, silent=11.0), open_end))[0] == "suspect"
    late = with_threads(rank(1, IN_LOAD), LOCKED, IN_LIBRARY)
    assert told(job(WAITS, late)) == ("hang", (1,), (0,), "thread_deadlock")


@pytest.mark.parametrize(("behind_s", "cause"), [(3, "gil_held"), (1, "rank_stalled")])
def test_a_pulse_that_stands_still_shows_a_kept_interpreter_lock(behind_s: int, cause: str) -> None:
    beat = Beat(pid=101, pulse_ns=NOW_NS - behind_s * SECOND)
    holds = with_lock_owner(rank(1, IN_LOAD, beat=beat))
    assert told(job(WAITS, holds)) == ("hang", (1,), (0,), cause)


@pytest.mark.parametrize(("behind_s", "victims"), [(3, (0,)), (1, ())])
def test_a_helper_that_keeps_the_interpreter_lock_holds_up_a_rank_in_a_collective(
    behind_s: int, victims: tuple[int, ...]
) -> None:
    decodes = ThreadStack(tid=205, owns_gil=True, frames=(user("decode_video", 9),))
    beat = Beat(pid=101, pulse_ns=NOW_NS - behind_s * SECOND)
    holds = with_threads(rank(1, IN_ALL_REDUCE, beat=beat), decodes)
    verdict = judge(job(rank(0, IN_ALL_REDUCE), holds))
    assert verdict.victims == victims
    if victims:
        assert (verdict.culprits, verdict.cause) == ((1,), "gil_held")
        assert "decode_video (demo/train.py:9)" in verdict.summary


@pytest.mark.parametrize(("share", "kind"), [(0.1, "suspect"), (0.8, "healthy")])
def test_who_keeps_the_lock_for_want_of_a_processor_is_not_blamed(share: float, kind: str) -> None:
    """Importing torch on a crowded machine: ready to go on, and not let."""
    beat = Beat(pid=101, pulse_ns=NOW_NS - 3 * SECOND)
    holds = with_lock_owner(rank(1, IN_LOAD, silent=12.0, cpu=0.03, beat=beat, state="R"))
    starved = with_main(holds, queued_s=lambda number: share * number * 1.1)
    assert judge(job(rank(0, IN_ALL_REDUCE), starved)).verdict == kind


@pytest.mark.parametrize(
    ("used", "faults_s", "cause"),
    [(97, 400, "memory_pressure"), (60, 400, "rank_stalled"), (97, 5, "rank_stalled")],
)
def test_full_memory_and_pages_from_disk_are_memory_pressure(
    used: int, faults_s: int, cause: str
) -> None:
    thrashes = with_kernel(
        rank(1, IN_LOAD),
        major_faults=lambda number, _: int(number * 1.1 * faults_s),
        memory=MemoryUse(used << 30, 100 << 30, "control group"),
    )
    assert told(job(WAITS, thrashes)) == ("hang", (1,), (0,), cause)
    if cause == "memory_pressure":
        assert "97 % of the control group's 100.0 GiB" in judge(job(WAITS, thrashes)).summary
