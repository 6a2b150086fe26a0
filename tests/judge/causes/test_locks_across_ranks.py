"""Ranks that keep a lock while they wait in a collective, which the other's call needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cases import FUTEX, MAIN, beside, job, rank, torch, user, with_threads
from flights import flying
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import CodeNote, RankView
from lightning_hangcheck.model.evidence import ThreadStack

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

EVALUATES = (MAIN, user("evaluate", 42))
AVERAGES = (user("average", 33),)
AVERAGES_ON = (user("average", 36), torch("all_reduce"))
IN_COLLECTIVE = (MAIN, user("evaluate", 45), torch("all_reduce"))


def kept_out_by_its_helper() -> RankView:
    """Its main thread takes the lock with which a helper waits in a collective of group 1."""
    helper = ThreadStack(tid=300, name="averager", frames=AVERAGES_ON)
    first = with_threads(rank(0, EVALUATES, silent=20.0), helper)
    return flying(first, "all_reduce 1", group="1", ranks=(0, 1))


def keeps_its_helper_out() -> RankView:
    """Its main thread waits in a collective, and a helper takes the lock that it has."""
    waits = rank(1, IN_COLLECTIVE, silent=20.0)
    locked = beside(waits, AVERAGES, syscall=202, waits_for=FUTEX)
    own = locked.processes[0]
    samples = tuple(
        replace(
            one,
            stack=replace(
                one.stack,
                threads=tuple(replace(t, takes_lock=t.tid == 300) for t in one.stack.threads),
            ),
        )
        for one in own.samples
        if one.stack is not None
    )
    locked = replace(locked, processes=(replace(own, samples=samples),))
    return flying(locked, "all_reduce 4", ranks=(0, 1))


def told(first: RankView, second: RankView, *, calls: bool | None) -> Verdict:
    line = AVERAGES[0]
    note = CodeNote(file=line.file, line=line.line, collectives_ahead=calls)
    return judge(replace(job(first, second), code=(note,)))


def test_all_of_them_are_named_and_the_lock() -> None:
    verdict = told(kept_out_by_its_helper(), keeps_its_helper_out(), calls=True)
    assert (verdict.verdict, verdict.culprits) == ("hang", (0, 1))
    assert verdict.cause == "thread_deadlock"
    assert "rank 0 takes one in evaluate (demo/train.py:42) that its thread averager has" in (
        verdict.summary
    )
    assert "hold no lock while a collective waits" in verdict.remedies[0].text


def test_a_helper_that_makes_no_such_call_is_not_what_the_other_waits_for() -> None:
    for calls in (False, None):
        verdict = told(kept_out_by_its_helper(), keeps_its_helper_out(), calls=calls)
        assert verdict.cause == "rank_diverged", calls


def test_without_a_lock_they_only_meet_in_different_groups() -> None:
    away = flying(rank(0, IN_COLLECTIVE, silent=20.0), "all_reduce 1", group="1", ranks=(0, 1))
    other = flying(rank(1, IN_COLLECTIVE, silent=20.0), "all_reduce 4", ranks=(0, 1))
    assert told(away, other, calls=True).cause == "collective_mismatch"
