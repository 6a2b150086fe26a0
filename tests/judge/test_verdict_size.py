"""Many ranks: a verdict is made in their share of time, without collections, and stays small."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_BARRIER, IN_LOAD, SITE, Frames, gone, job, missing, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.verdict import without_collections
from lightning_hangcheck.model.case import Alike, Case, RankView
from lightning_hangcheck.model.codec import encode_for_file
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.report.verdict_text import render
from lightning_hangcheck.text.shown import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Callable


DEEP = tuple(Frame(f"call_{n}", f"{SITE}/lightning/pytorch/x.py", n) for n in range(40))


MOST_BYTES = 256_000

MOST_LINES = 40


def of_many(world: int, usual: RankView, odd: RankView, every: int) -> Case:
    """A job in which every so many ranks stand as the odd one, all others as the usual one."""
    odds = range(1, world, every)
    rest = sorted(set(range(world)) - set(odds))
    views = replace(usual, rank=rest[0]), replace(odd, rank=odds[0])
    alike = [Alike(rank=ranks[0], ranks=format_ranks(ranks)) for ranks in (rest, list(odds))]
    return job(*views, world_size=world, alike=tuple(alike))


@pytest.mark.parametrize(
    ("odd", "every"), [(rank(1, IN_LOAD), 2), (gone(1, -9), 3), (missing(1), 100)]
)
def test_the_file_and_the_report_of_many_ranks_stay_small(odd: RankView, every: int) -> None:
    case = of_many(8_000, rank(0, IN_ALL_REDUCE), odd, every)
    verdict = judge(case)
    assert len(encode_for_file(verdict)) <= MOST_BYTES
    assert len(render(case, verdict, "run").splitlines()) <= MOST_LINES
    assert len(verdict.culprits) == min(1_024, len(range(1, 8_000, every)))


def test_what_was_left_out_is_counted_and_the_rest_is_whole() -> None:
    verdict = judge(of_many(8_000, rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD), 100))
    assert [row.rank for row in verdict.ranks] == [0, *verdict.culprits]
    whats = [gap.what for gap in verdict.gaps]
    assert "6,896 of 7,920 victims" in whats
    assert verdict.culprits == tuple(range(1, 8_000, 100))
    waiting, standing = verdict.stack_groups
    assert (waiting.count, standing.count) == (7_920, 80)
    assert parse_ranks(standing.ranks) == verdict.culprits
    assert {edge.target for edge in verdict.wait_for} == {f"rank:{one}" for one in verdict.culprits}


@pytest.mark.parametrize("other_half", [IN_BARRIER, IN_LOAD])
def test_eight_times_the_ranks_take_no_more_than_their_share_of_time(other_half: Frames) -> None:
    """A walk from each rank to each other one would take 64 times as long."""

    def spent_s(ranks: int) -> float:
        stacks = [(*DEEP, *(IN_ALL_REDUCE if 2 * n < ranks else other_half)) for n in range(ranks)]
        case = job(*(rank(n, stack) for n, stack in enumerate(stacks)))
        started = time.process_time()
        assert len(judge(case).ranks) == ranks
        return time.process_time() - started

    judge(job(rank(0, IN_LOAD)))  # reads the data files
    assert min(spent_s(512) for _ in range(2)) < 24 * min(spent_s(64) for _ in range(3))


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_threads_either_may_end_first(first_to_end: int) -> None:
    stacks = ExitStack(), ExitStack()
    for stack in stacks:
        _in_thread(lambda stack=stack: stack.enter_context(without_collections()))
    assert not gc.isenabled()
    for stack in (stacks[first_to_end], stacks[1 - first_to_end]):
        _in_thread(stack.close)
    assert gc.isenabled()


def _in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
