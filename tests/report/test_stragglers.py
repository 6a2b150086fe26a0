"""Who is slow where nothing hangs: by the work that a rank has of its own."""

from __future__ import annotations

import pytest
from constructed import case

from lightning_hangcheck.model.beat import Beat, StepTimes
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines


def rank(number: int, *marks: StepTimes) -> RankView:
    """A rank that had these sums at moments of the run, the last of them in the end."""
    beat = Beat(pid=100 + number, rank=number, step_times=marks[-1])
    return RankView(rank=number, pid=100 + number, beat=beat, step_sums=marks[:-1])


def sums(steps: int, loader_s: float, forward_s: float, rest_s: float) -> StepTimes:
    """Sums of equal steps."""
    return StepTimes(steps, steps * loader_s, steps * forward_s, steps * rest_s)


def evenly(number: int, loader_s: float, forward_s: float, rest_s: float) -> RankView:
    return rank(number, *(sums(n, loader_s, forward_s, rest_s) for n in range(10, 90, 10)))


def test_the_slowest_rank_is_the_one_with_most_work_of_its_own() -> None:
    """All steps of a distributed job take the same time, as the others wait for the slowest."""
    fast = [evenly(number, 0.02, 0.1, 0.28) for number in (0, 1, 3)]
    found = find_stragglers(case(*fast, evenly(2, 0.2, 0.1, 0.1)))
    assert found is not None
    assert [one.rank for one in found.ranks] == [2, 0, 1, 3]
    assert found.ranks[0].ratio == pytest.approx(2.5)
    assert stragglers_lines(found) == [
        "      steps    80 timed, 0.4 s each; slowest is rank 2: 0.3 s of its own, "
        "2.5 times the median rank's 0.12 s",
        "      where    rank 2: loader 0.2 s, forward 0.1 s, backward, optimizer and waiting "
        "0.1 s; median: loader 0.02 s, forward 0.1 s, backward, optimizer and waiting 0.28 s",
        "      trend    even: 0.4 s at first, 0.4 s in the end",
    ]


def test_ranks_that_are_alike_are_called_so() -> None:
    lines = stragglers_lines(
        find_stragglers(case(evenly(0, 0.1, 0.1, 0.2), evenly(1, 0.1, 0.105, 0.195)))
    )
    assert lines[0].endswith("80 timed, 0.4 s each; all 2 ranks are alike")


def test_of_two_ranks_the_slower_is_compared_with_the_other() -> None:
    found = find_stragglers(case(evenly(0, 0.1, 0.1, 0.4), evenly(1, 0.4, 0.1, 0.1)))
    assert found is not None
    assert (found.ranks[0].rank, found.ranks[0].ratio) == (1, pytest.approx(2.5))
    assert found.typical.rest_s == pytest.approx(0.4)


def test_a_rank_that_became_slower_is_told_with_the_part_that_did() -> None:
    early, late = sums(40, 0.1, 0.1, 0.1), StepTimes(80, 4 + 40 * 0.7, 8, 8)
    marks = [sums(10 * n, 0.1, 0.1, 0.1) for n in range(1, 4)]
    lines = stragglers_lines(find_stragglers(case(rank(0, *marks, early, early, late))))
    assert (
        lines[-1]
        == "      trend    0.3 s at first, 0.9 s in the end; most in loader: 0.1 s, then 0.7 s"
    )


def test_nothing_is_said_of_few_steps_or_none() -> None:
    for few in (rank(0, sums(9, 1, 1, 1)), RankView(rank=0, beat=Beat(pid=1)), RankView(rank=0)):
        assert find_stragglers(case(few)) is None
    assert find_stragglers(None) is None
    assert stragglers_lines(None) == []
