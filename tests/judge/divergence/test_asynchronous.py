"""Operations that no frame shows: started before, awaited later, or nobody's to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_BARRIER, IN_LOAD, MAIN, gone, job, rank, user, with_threads
from flights import TRAIN, flying
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.records import open_operation
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.evidence import ThreadStack

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.verdict import Verdict

AT_WAIT = (MAIN, user("reduce_all", 30))
WAITS = CodeNote(file=TRAIN, line=30, awaits=True)
SAVING = 777
SAVER = ThreadStack(tid=201, name="saver", ident=SAVING, frames=(user("save", 60),))


def _edges(verdict: Verdict) -> set[tuple[str, str]]:
    return {(edge.source, edge.target) for edge in verdict.wait_for}


@pytest.mark.parametrize("cpu", [0.0, 1.0])
def test_a_rank_at_the_end_of_what_it_started_waits_for_those_that_have_not(cpu: float) -> None:
    """It may sleep in Work.wait, or ask is_completed again and again."""
    verdict = judge(
        job(
            flying(rank(0, AT_WAIT, cpu=cpu), "all_reduce 4", "all_reduce 4"),
            flying(rank(1, IN_LOAD), "all_reduce 4", open_ops=0),
            code=(WAITS,),
        )
    )
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1,), (0,))
    assert verdict.cause == "rank_stalled"
    assert _edges(verdict) == {("rank:0", "rank:1")}


def test_a_rank_that_does_something_else_meanwhile_waits_for_nobody() -> None:
    verdict = judge(
        job(
            flying(rank(0, IN_LOAD), "all_reduce 4", "all_reduce 4"),
            flying(rank(1, IN_LOAD), "all_reduce 4", open_ops=0),
            code=(WAITS,),
        )
    )
    assert verdict.wait_for == ()


def test_only_those_that_have_not_come_to_the_operation_are_waited_for() -> None:
    """Rank 2 has come to it and gone on to other things."""
    members = (0, 1, 2)
    verdict = judge(
        job(
            flying(rank(0, AT_WAIT), "all_reduce 4", ranks=members),
            flying(rank(1, IN_LOAD), "broadcast 1", open_ops=0, group="1"),
            flying(rank(2, (MAIN, user("load", 41))), "all_reduce 4", ranks=members),
            code=(WAITS,),
        )
    )
    assert _edges(verdict) == {("rank:0", "rank:1")}


def test_what_another_thread_entered_never_stands_for_the_main_thread() -> None:
    """A checkpoint's barrier in the background, of a rank that computes."""

    def beside(view: RankView, *ops: str) -> RankView:
        saving = flying(view, "barrier", group="1", ranks=(0, 1), thread=SAVING)
        return with_threads(flying(saving, *ops, thread=1), SAVER, takes_lock=False, futex=False)

    verdict = judge(
        job(
            beside(rank(0, IN_LOAD, cpu=1.0, goes_round=True, silent=20.0)),
            flying(rank(1, IN_ALL_REDUCE, silent=20.0), "all_reduce 4", thread=1),
        )
    )
    assert (verdict.culprits, verdict.cause) == ((0,), "spinning")
    assert verdict.verdict == "suspect"


def test_a_rank_that_left_well_is_not_waited_for_by_a_group_without_it() -> None:
    """Ranks 0 and 1 go on; rank 0 computes."""
    pair = {"group": "1", "ranks": (0, 1)}
    verdict = judge(
        job(
            flying(rank(0, IN_LOAD, cpu=1.0, goes_round=True, silent=20.0), **pair),  # type: ignore[arg-type]
            flying(rank(1, IN_ALL_REDUCE, silent=20.0), "all_reduce 4", **pair),  # type: ignore[arg-type]
            gone(2, 0),
        )
    )
    assert _edges(verdict) == {("rank:1", "rank:0")}
    assert verdict.verdict == "suspect"


def test_ranks_that_wait_only_for_each_other_have_parted_whatever_a_third_does() -> None:
    """Rank 2 has left the job well; it is in neither group that is waited in."""
    pair = {"group": "1", "ranks": (0, 1)}
    verdict = judge(
        job(
            flying(rank(0, IN_ALL_REDUCE), "all_reduce 4", **pair),  # type: ignore[arg-type]
            flying(
                flying(rank(1, IN_BARRIER), **pair),  # type: ignore[arg-type]
                "barrier",
                group="2",
                ranks=(0, 1),
            ),
            gone(2, 0),
        )
    )
    assert verdict.verdict == "hang"
    assert set(verdict.culprits) <= {0, 1}
    assert verdict.cause == "rank_diverged"


def test_each_waits_for_its_own_group_alone() -> None:
    verdict = judge(
        job(
            flying(rank(0, IN_BARRIER), "barrier", ranks=(0, 1, 2, 3)),
            flying(rank(1, IN_BARRIER), "barrier", ranks=(0, 1, 2, 3)),
            flying(
                flying(rank(2, IN_ALL_REDUCE), ranks=(0, 1, 2, 3)),
                "all_reduce 4",
                group="b",
                ranks=(2, 3),
            ),
            flying(flying(rank(3, IN_LOAD), ranks=(0, 1, 2, 3)), group="b", ranks=(2, 3)),
        )
    )
    assert _edges(verdict) == {
        ("rank:0", "rank:2"),
        ("rank:0", "rank:3"),
        ("rank:1", "rank:2"),
        ("rank:1", "rank:3"),
        ("rank:2", "rank:3"),
    }
    assert (verdict.culprits, verdict.victims) == ((3,), (0, 1, 2))


def test_an_operation_without_a_note_of_its_line_is_not_guessed_at() -> None:
    case = job(
        flying(rank(0, AT_WAIT), "all_reduce 4"), rank(1, IN_LOAD), code=(replace(WAITS, line=31),)
    )
    assert judge(case).wait_for == ()


def test_what_the_thread_that_waits_has_entered_stands_for_a_rank() -> None:
    """It may be read by another thread than the main one, for which the main thread waits."""
    view = with_threads(rank(0, IN_LOAD), SAVER, takes_lock=False, futex=False)
    view = flying(flying(view, "all_reduce 4", thread=1), "barrier", group="1", thread=SAVING)
    of_main, of_other = (open_operation(view, of_main=one) for one in (True, False))
    assert of_main is not None
    assert of_other is not None
    assert (of_main[1].op, of_other[1].op) == ("all_reduce", "barrier")
