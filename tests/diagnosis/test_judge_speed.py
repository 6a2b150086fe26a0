"""Judging must not delay an alarm at any world size; processor time, as machines may be busy."""

from __future__ import annotations

import time

import pytest
from cases import IN_ALL_REDUCE, IN_BARRIER, IN_LOAD, SITE, Frames, job, rank

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.evidence import Frame

DEEP = tuple(Frame(f"call_{n}", f"{SITE}/lightning/pytorch/x.py", n) for n in range(40))


@pytest.mark.parametrize("other_half", [IN_ALL_REDUCE, IN_BARRIER, IN_LOAD])
def test_1024_ranks_are_judged_within_a_second(other_half: Frames) -> None:
    case = job(
        *(rank(n, (*DEEP, *(IN_ALL_REDUCE if n < 512 else other_half))) for n in range(1024))
    )
    judge(job(rank(0, IN_LOAD)))  # reads the data files and imports networkx
    started = time.process_time()
    verdict = judge(case)
    assert time.process_time() - started < 1.0
    assert len(verdict.ranks) == 1024


def test_above_1024_ranks_only_culprits_and_examples_are_listed() -> None:
    case = job(*(rank(n, IN_LOAD if n == 700 else IN_ALL_REDUCE) for n in range(1100)))
    verdict = judge(case)
    assert verdict.culprits == (700,)
    assert [row.rank for row in verdict.ranks] == [0, 700]
    assert verdict.world_size == 1100
