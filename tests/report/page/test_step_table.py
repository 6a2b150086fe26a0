"""The page's table of steps: the slowest rank first and marked, the median last, few of many."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from cases import IN_ALL_REDUCE, rank
from page_runs import ReadPage, case_of, written

from lightning_hangcheck.model.beat import Beat, StepTimes

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.case import RankView


def stepping(number: int, loader_s: float) -> RankView:
    """A rank that has timed a hundred steps."""
    times = StepTimes(100, 100 * loader_s, 10.0, 20.0)
    beat = Beat(pid=4000 + number, rank=number, step_times=times)
    return msgspec.structs.replace(rank(number, IN_ALL_REDUCE), beat=beat)


def shown(page: str) -> tuple[str, list[str]]:
    """The rows of the table, and the ranks in them."""
    block = page.partition('<section id="steps"')[2].partition("</section>")[0]
    return block, re.findall(r'<th scope="row">(\w+)</th>', block)


def test_the_slowest_rank_comes_first_and_is_marked(tmp_path: Path) -> None:
    page = written(tmp_path, case_of(stepping(0, 0.1), stepping(1, 0.1), stepping(2, 0.5)))
    block, rows = shown(page)
    assert rows == ["2", "0", "1", "median"]
    assert block.count('class="culprit"') == 1
    assert re.search(r'class="culprit"><th scope="row">2</th><td>100</td><td>0.8 s</td>', block)
    assert not ReadPage(page).open_elements


def test_of_many_ranks_the_slowest_are_shown(tmp_path: Path) -> None:
    block, rows = shown(written(tmp_path, case_of(*(stepping(r, 0.1 + r) for r in range(64)))))
    assert rows == [*(str(r) for r in range(63, 47, -1)), "median"]
    assert "48 ranks with less work of their own are not shown" in block


def test_ranks_that_time_nothing_have_no_table(tmp_path: Path) -> None:
    assert shown(written(tmp_path, case_of(rank(0, IN_ALL_REDUCE)))) == ("", [])
