"""What a coroutine awaits is on no stack: the verdict says so of a culprit whose loop waits."""

from __future__ import annotations

from cases import IN_ALL_REDUCE, IN_LOAD, MAIN, STDLIB, job, rank, user

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.evidence import Frame

LOOP = (
    Frame("Runner.run", f"{STDLIB}/asyncio/runners.py", 118),
    Frame("BaseEventLoop._run_once", f"{STDLIB}/asyncio/base_events.py", 1884),
    Frame("EpollSelector.select", f"{STDLIB}/selectors.py", 468),
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
