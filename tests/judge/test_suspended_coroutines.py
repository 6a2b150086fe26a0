"""What a coroutine awaits is on no stack: the verdict says so of a culprit whose loop waits."""

from __future__ import annotations

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_LOAD,
    MAIN,
    SITE,
    STDLIB,
    Frames,
    job,
    rank,
    torch,
    user,
    with_threads,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Frame, ThreadStack

LOOP = (
    Frame("Runner.run", f"{STDLIB}/asyncio/runners.py", 118),
    Frame("BaseEventLoop._run_once", f"{STDLIB}/asyncio/base_events.py", 1884),
    Frame("EpollSelector.select", f"{STDLIB}/selectors.py", 468),
)
UVLOOP = (
    Frame("run", f"{SITE}/uvloop/__init__.py", 92),
    Frame("Runner.run", f"{STDLIB}/asyncio/runners.py", 118),
)
EXECUTOR = (
    Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83),
    Frame("_WorkItem.run", f"{STDLIB}/concurrent/futures/thread.py", 58),
    user("train", 55),
)


def test_a_culprit_in_its_event_loop_has_a_gap_for_what_its_coroutines_await() -> None:
    verdict = judge(job(rank(0, IN_ALL_REDUCE), rank(1, (MAIN, user("serve", 19), *LOOP))))
    assert verdict.culprits == (1,)
    assert "in serve (demo/train.py:19)" in verdict.summary
    (gap,) = verdict.gaps
    assert (gap.what, gap.rank) == ("coroutines of rank 1", 1)
    assert "on no stack" in gap.why


def test_a_culprit_that_runs_no_event_loop_has_none() -> None:
    assert judge(job(rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD))).gaps == ()


@pytest.mark.parametrize("loop", [LOOP, UVLOOP])
def test_an_event_loop_is_no_place_while_an_executor_of_it_trains(loop: Frames) -> None:
    meets, loads = (*EXECUTOR, torch("all_reduce")), (*EXECUTOR, user("load", 41))
    ranks = [
        with_threads(
            rank(number, (MAIN, user("serve", 19), *loop)),
            ThreadStack(tid=9, frames=frames),
            takes_lock=False,
            futex=False,
        )
        for number, frames in enumerate((meets, loads))
    ]
    verdict = judge(job(*ranks))
    assert verdict.culprits == (1,)
    assert "in load (demo/train.py:41)" in verdict.summary
    assert verdict.gaps == ()
