"""A wait for a lock leads to the one thread that is known to have it, whatever else runs beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, IN_LOAD, STDLIB, job, rank, user, with_threads
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.threads import Moment
from lightning_hangcheck.judge.waits import read_locks, stuck_thread, waits_in_vain
from lightning_hangcheck.model.evidence import Frame, ThreadStack, WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import ProcessLook, ThreadState

MAIN, KEEPER, OTHER = 101, 201, 202
SLEEPS = WaitTarget(call="clock_nanosleep", kind="time")
CHILD = WaitTarget(call="wait4", kind="process", name="700")
IN_FUTURE = (
    user("push", 7),
    Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451),
    Frame("Condition.wait", f"{STDLIB}/threading.py", 327),
)
POOL = (Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83), user("fetch", 9))
TICKS = ThreadStack(tid=205, name="heartbeat", frames=(user("tick", 5),))
TAKES_TURNS = ThreadStack(tid=206, name="log", takes_lock=True, frames=(user("rotate", 3),))


def takes(tid: int, holder: int | None, line: int = 7) -> ThreadStack:
    """A thread that takes a lock of this holder."""
    return ThreadStack(
        tid=tid, name="pusher", takes_lock=True, held_by=holder, frames=(user("push", line),)
    )


def waiting(
    holder: int | None, *others: ThreadStack, silent: float = 5.0, **waits: WaitTarget
) -> RankView:
    """Rank 1, whose main thread takes a lock of this holder; the heartbeat sleeps and wakes.

    Args:
        holder: Kernel thread id.
        others: Its further threads.
        silent: Seconds.
        waits: What other threads wait for than a word of memory: ``_201=CHILD``.
    """
    view = with_threads(rank(1, IN_LOAD, silent=silent), *others, TICKS)
    (own,) = view.processes
    waits = {f"_{TICKS.tid}": SLEEPS, **waits}
    samples = []
    for number, one in enumerate(own.samples):
        assert one.stack is not None
        assert one.kernel is not None
        main, *rest = one.stack.threads
        stack = replace(one.stack, threads=(replace(main, held_by=holder), *rest))
        states = tuple(_doing(state, waits, number) for state in one.kernel.threads)
        samples.append(replace(one, stack=stack, kernel=replace(one.kernel, threads=states)))
    return replace(view, processes=(replace(own, samples=tuple(samples)),))


def _doing(state: ThreadState, waits: dict[str, WaitTarget], sample: int) -> ThreadState:
    target = waits.get(f"_{state.tid}")
    if target is None:
        return state
    wakes = sample if state.tid == TICKS.tid else 9
    return replace(state, syscall=0, waits_for=(target,), wakes_ns=wakes)


def process(view: RankView) -> ProcessLook:
    (own,) = view.processes
    return own


def led_to(view: RankView) -> list[int | None]:
    """The threads in which the wait ends."""
    chain = Moment(process(view).samples[-1], None).chain
    assert chain is not None
    return [one.tid for one in chain.ends]


def test_two_threads_that_have_each_other_s_locks_are_proven_beside_one_that_ticks() -> None:
    circle = waiting(KEEPER, takes(KEEPER, MAIN))
    assert led_to(circle) == []
    assert waits_in_vain(process(circle))
    verdict = judge(job(rank(0, IN_BARRIER, silent=5.0), circle))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "thread_deadlock")
    assert "in load (demo/train.py:41) for a lock that its thread pusher holds" in verdict.summary
    assert "which waits in push (demo/train.py:7) for a lock that load holds" in verdict.summary


@pytest.mark.parametrize(("first", "second"), [(None, MAIN), (KEEPER, None)])
def test_a_circle_of_which_one_half_is_not_known_is_not_proven(
    first: int | None, second: int | None
) -> None:
    half = waiting(first, takes(KEEPER, second))
    assert TICKS.tid in led_to(half)
    assert not waits_in_vain(process(half))
    assert judge(job(rank(0, IN_BARRIER, silent=31.0), half)).verdict != "hang"


def test_a_circle_may_have_more_threads_and_others_that_wait_for_it() -> None:
    waits_too = takes(207, KEEPER, line=8)
    circle = waiting(KEEPER, takes(KEEPER, OTHER), takes(OTHER, MAIN, line=9), waits_too)
    locked = read_locks(process(circle))
    assert locked is not None
    assert [one.tid for one in locked.threads] == [MAIN, KEEPER, OTHER]
    summary = judge(job(rank(0, IN_BARRIER, silent=5.0), circle)).summary
    assert "with 3 threads that wait for each other's locks" in summary


def test_a_circle_may_lead_through_work_that_was_given_away_with_a_lock_in_hand() -> None:
    gives = ThreadStack(tid=KEEPER, frames=IN_FUTURE)
    works = ThreadStack(tid=OTHER, takes_lock=True, held_by=KEEPER, frames=POOL)
    assert waits_in_vain(process(waiting(KEEPER, gives, works)))
    assert not waits_in_vain(process(waiting(KEEPER, gives, replace(works, held_by=None))))


def test_the_wait_is_told_by_what_the_holder_waits_for() -> None:
    copies = ThreadStack(tid=KEEPER, frames=(user("copy_shard", 12),))
    view = waiting(KEEPER, copies, TAKES_TURNS, _201=CHILD)
    assert led_to(view) == [KEEPER]
    stuck = stuck_thread(process(view))
    assert stuck is not None
    assert stuck.tid == KEEPER
    unknown = waiting(None, copies, TAKES_TURNS, _201=CHILD)
    assert set(led_to(unknown)) == {KEEPER, TICKS.tid}


def test_threads_that_wait_for_one_that_sleeps_with_their_lock_are_in_no_deadlock() -> None:
    sleeps = ThreadStack(tid=KEEPER, frames=(user("back_off", 12),))
    view = waiting(KEEPER, sleeps, takes(OTHER, KEEPER), silent=31.0, _201=SLEEPS)
    assert read_locks(process(view)) is None
    verdict = judge(job(rank(0, IN_BARRIER, silent=31.0), view))
    assert (verdict.verdict, verdict.cause) == ("suspect", "rank_stalled")
    assert "back_off (demo/train.py:12)" in verdict.summary
