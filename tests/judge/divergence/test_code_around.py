"""Who diverged, and why, by the source around the lines on which ranks stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BACKWARD,
    IN_BARRIER,
    MAIN,
    job,
    rank,
    torch,
    user,
)
from flights import (
    AFTER_LOOP,
    EPOCH_END,
    EVALUATION,
    FIT,
    IN_HOOK,
    IN_LOOP,
    PARKED,
    RANK_ZERO_ONLY,
    flying,
    noted,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from cases import Frames

    from lightning_hangcheck.model.case import CodeNote


def test_code_under_a_test_of_the_rank_diverged() -> None:
    note = noted(44, condition="self.trainer.is_global_zero", condition_line=43)
    case = job(
        flying(rank(0, IN_HOOK), "barrier"), flying(rank(1, PARKED), "broadcast 1"), code=(note,)
    )
    verdict = judge(case)
    assert (verdict.culprits, verdict.cause) == ((0,), "rank_diverged")
    assert "under if self.trainer.is_global_zero" in verdict.summary
    assert ("code", 0) in [(item.kind, item.rank) for item in verdict.evidence]


def test_a_test_of_the_rank_tells_before_the_sequence() -> None:
    """An evaluation on rank 0 broadcasts buffers as each step does; it is rank 0 that diverged."""
    steps = ("broadcast 8", "all_reduce 28") * 4
    note = noted(44, condition="rank == 0", condition_line=43)
    case = job(
        flying(rank(0, IN_HOOK), *steps, "broadcast 8"),
        flying(rank(1, AFTER_LOOP), *steps, "barrier"),
        code=(note,),
    )
    assert judge(case).culprits == (0,)


@pytest.mark.parametrize(("steps", "culprits"), [(4, (1,)), (0, (0,))])
def test_a_test_that_all_ranks_but_one_pass_leads_nobody_from_the_sequence(
    steps: int, culprits: tuple[int, ...]
) -> None:
    """``if not (rank == 1 and bad): loss.backward()``: rank 0 does what every step did."""
    before = ("broadcast 8", "all_reduce 28") * steps + ("broadcast 8",)
    note = noted(91, condition="self.is_good(index)", condition_line=90, condition_of_most=True)
    case = job(
        flying(rank(0, IN_BACKWARD), *before, "all_reduce 28"),
        flying(rank(1, PARKED), *before, "broadcast 8"),
        code=(note,),
    )
    assert judge(case).culprits == culprits


def test_both_branches_of_one_test_tell_nothing() -> None:
    notes = [noted(line, condition="rank == 0", condition_line=80) for line in (88, 90)]
    case = job(
        flying(rank(0, IN_BARRIER), "barrier"),
        flying(rank(1, IN_ALL_REDUCE), "all_reduce 4"),
        code=tuple(notes),
    )
    assert judge(case).culprits == (0, 1)


def test_what_runs_under_rank_zero_only_diverged() -> None:
    hook = (*FIT, RANK_ZERO_ONLY, user("Model.on_train_epoch_end", 44), torch("barrier"))
    verdict = judge(job(flying(rank(0, hook), "barrier"), flying(rank(1, PARKED), "broadcast 1")))
    assert (verdict.culprits, verdict.cause) == ((0,), "rank_diverged")
    assert "@rank_zero_only" in verdict.summary


def test_a_rank_behind_the_loop_that_others_are_in_ran_out_of_work() -> None:
    notes = (noted(20, loops=((18, 22),)), noted(30))
    case = job(
        flying(rank(0, IN_LOOP), "all_reduce 4", "all_reduce 4", "all_reduce 4"),
        flying(rank(1, AFTER_LOOP), "all_reduce 4", "all_reduce 4", "barrier"),
        code=notes,
    )
    verdict = judge(case)
    assert (verdict.culprits, verdict.cause) == ((1,), "uneven_work")


@pytest.mark.parametrize("most", ["ran out", "go on"])
def test_whether_most_ran_out_of_work_or_one_did_the_cause_is_the_same(most: str) -> None:
    notes = (noted(20, loops=((18, 22),)), noted(30))
    more, fewer = (3, 1) if most == "go on" else (1, 3)
    steps = ("all_reduce 4", "all_reduce 4")
    ways = [(IN_LOOP, "all_reduce 4")] * more + [(AFTER_LOOP, "barrier")] * fewer
    ranks = (flying(rank(n, way), *steps, op) for n, (way, op) in enumerate(ways))
    verdict = judge(job(*ranks, code=notes))
    assert (verdict.culprits, verdict.cause) == ((3,) if most == "go on" else (0,), "uneven_work")


IN_EVALUATION = (MAIN, user("train", 25), user("evaluate", 50), torch("all_reduce"))
EVALUATES = noted(50, loops=((48, 52),))


@pytest.mark.parametrize(
    ("notes", "cause"),
    [
        ((noted(25), EVALUATES), "uneven_work"),
        ((noted(25, branches=((25, 25),)), EVALUATES), "rank_diverged"),
        (
            (noted(25), noted(50, loops=((48, 52),), branches=((46, 53),))),
            "rank_diverged",
        ),  # evaluate() has returned early
    ],
)
def test_a_rank_that_a_test_led_past_a_loop_has_not_run_out_of_work(
    notes: tuple[CodeNote, ...], cause: str
) -> None:
    case = job(
        flying(rank(0, IN_EVALUATION), "all_reduce 4", "all_reduce 4"),
        flying(rank(1, AFTER_LOOP), "all_reduce 4", "barrier"),
        code=(*notes, noted(30)),
    )
    assert judge(case).cause == cause


def test_the_rank_that_a_test_leads_away_diverged_not_those_that_stay() -> None:
    """``if rank == 0: continue`` before the all-reduce: rank 0 comes to the end of the loop."""
    notes = (noted(20, loops=((18, 22),), skipped_under="rank == 0"), noted(30))
    case = job(
        flying(rank(0, AFTER_LOOP), "all_reduce 4", "barrier"),
        flying(rank(1, IN_LOOP), "all_reduce 4", "all_reduce 4"),
        code=notes,
    )
    verdict = judge(case)
    assert (verdict.culprits, verdict.cause) == ((0,), "rank_diverged")


def test_a_test_under_which_all_stand_leads_nobody_away() -> None:
    notes = (
        noted(140, condition="args.local_rank != -1", condition_line=139),
        noted(20, loops=((18, 22),)),
        noted(30),
    )
    case = job(
        flying(rank(0, IN_LOOP), "all_reduce 4", "all_reduce 4"),
        flying(rank(1, AFTER_LOOP), "all_reduce 4", "barrier"),
        code=notes,
    )
    verdict = judge(case)
    assert (verdict.culprits, verdict.cause) == ((1,), "uneven_work")


@pytest.mark.parametrize(
    ("test", "culprits"),
    [
        ("rank >= 4", (4,)),
        ("4 <= dist.get_rank() < 8 and not self.rank % 8 == 7", (4,)),
        ("rank == 5", (5,)),
        ("rank >= 4 and step == 20", (5,)),  # what else it asks may have parted them
        ("self.is_boss", (5,)),
    ],
)
def test_a_test_that_all_pass_on_their_way_is_not_why_they_parted(
    test: str, culprits: tuple[int, ...]
) -> None:
    """Ranks 4 and 5 share a layer in which rank 4 has left out a reduction, by its own steps."""
    steps = ("all_reduce 28", "barrier") * 4
    pair = {"group": "2", "ranks": (4, 5)}
    case = job(
        flying(rank(4, IN_BARRIER), *steps, "barrier", **pair),  # type: ignore[arg-type]
        flying(rank(5, IN_ALL_REDUCE), *steps, "all_reduce 28", **pair),  # type: ignore[arg-type]
        code=(noted(90, condition=test, condition_line=85),),
        world_size=8,
        local_world_size=2,
    )
    verdict = judge(case)
    assert verdict.culprits == culprits
    assert (f"under if {test}" in verdict.summary) is (culprits == (5,))
    told = [one.text for one in verdict.evidence if one.kind == "code"]
    assert bool(told) is (culprits == (5,))


@pytest.mark.parametrize(
    ("way", "cause"),
    [
        ((*FIT, Frame("_EvaluationLoop.run", EVALUATION, 140), torch("barrier")), "uneven_work"),
        (EPOCH_END, "rank_diverged"),  # a value that only this rank logs leads here too
    ],
)
def test_a_rank_in_another_loop_of_lightning_ran_out_of_work(way: Frames, cause: str) -> None:
    steps = ("broadcast 1", "all_reduce 10") * 3
    case = job(
        flying(rank(0, PARKED), *steps, "broadcast 1"), flying(rank(1, way), *steps, "barrier")
    )
    verdict = judge(case)
    assert (verdict.culprits, verdict.cause) == ((1,), cause)


@pytest.mark.parametrize(
    ("culprits", "others", "advice"),
    [
        ((), ("if loss > 0.1",), "train.py:90: rank 1 left out what step calls there, under if"),
        (("if loss > 0.1",), (), "train.py:88: move what step calls there out of the condition"),
        (("if loss > 0.1",), ("if bad",), "train.py:88: move what step calls there out of"),
    ],
)
def test_the_advice_is_about_the_call_that_stands_under_a_test(
    culprits: tuple[str, ...], others: tuple[str, ...], advice: str
) -> None:
    """A rank that left a call out stands behind it, under no test: that line is as it should be."""
    notes = (
        noted(88, branches=((87, 88),) * len(culprits), branch_tests=culprits),
        noted(90, branches=((89, 91),) * len(others), branch_tests=others),
    )
    case = job(
        flying(rank(0, IN_ALL_REDUCE), "all_reduce 28"),
        flying(rank(1, IN_BARRIER), "barrier"),
        flying(rank(2, IN_ALL_REDUCE), "all_reduce 28"),
        code=notes,
    )
    verdict = judge(case)
    assert (verdict.culprits, verdict.cause) == ((1,), "rank_diverged")
    assert advice in verdict.remedies[0].text


@pytest.mark.parametrize(
    ("tests", "advice"),
    [
        (("if better",), "train.py:44: rank 1 left out what Model.on_train_epoch_end calls there"),
        ((), "move what"),
    ],
)
def test_a_rank_that_passed_a_hook_by_left_out_what_stands_there_under_a_test(
    tests: tuple[str, ...], advice: str
) -> None:
    """The framework has called the hook on every rank: where this one is by now, tells nothing."""
    note = noted(44, branches=((43, 44),) * len(tests), branch_tests=tests)
    case = job(
        flying(rank(0, IN_HOOK), "barrier"),
        flying(rank(1, PARKED), "broadcast 1"),
        flying(rank(2, IN_HOOK), "barrier"),
        code=(note,),
    )
    verdict = judge(case)
    assert verdict.culprits == (1,)
    assert advice in verdict.remedies[0].text
