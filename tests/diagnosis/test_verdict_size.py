"""A verdict stays small at any world size, and says what it left out."""

from __future__ import annotations

import pytest
from cases import IN_ALL_REDUCE, IN_BARRIER, IN_LOAD, SITE, gone, job, missing, rank
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.beat import Beat, CheckpointMark
from lightning_hangcheck.model.case import Alike, Case, RankView
from lightning_hangcheck.model.codec import encode_for_file
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.report.verdict_text.terminal import render
from lightning_hangcheck.text.rank_ranges import format_ranks, parse_ranks

DEEP = tuple(Frame(f"call_{n}", f"{SITE}/lightning/pytorch/x.py", n) for n in range(40))
SPINS = rank(1, IN_LOAD, cpu=1.0, silent=301.0)
MOST_BYTES = 256_000
MOST_LINES = 40


def of_many(world: int, usual: RankView, odd: RankView, every: int) -> Case:
    """A job in which every so many ranks stand as the odd one, all others as the usual one."""
    odds = range(1, world, every)
    rest = sorted(set(range(world)) - set(odds))
    views = replace(usual, rank=rest[0]), replace(odd, rank=odds[0])
    alike = [Alike(rank=ranks[0], ranks=format_ranks(ranks)) for ranks in (rest, list(odds))]
    return job(*views, world_size=world, alike=tuple(alike))


@pytest.mark.parametrize("every", [2, 3, 100, 1_000])
@pytest.mark.parametrize(
    "odd",
    [rank(1, IN_LOAD), rank(1, IN_BARRIER), gone(1, -9), missing(1), SPINS],
)
def test_the_file_and_the_report_of_many_ranks_stay_small(odd: RankView, every: int) -> None:
    case = of_many(8_000, rank(0, IN_ALL_REDUCE), odd, every)
    verdict = judge(case)
    assert len(encode_for_file(verdict)) <= MOST_BYTES
    assert len(render(case, verdict, "run").splitlines()) <= MOST_LINES
    assert len(verdict.culprits) == min(1_024, len(range(1, 8_000, every)))


def test_what_was_left_out_is_counted_and_the_rest_is_whole() -> None:
    verdict = judge(of_many(8_000, rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD), 100))
    whats = [gap.what for gap in verdict.gaps]
    assert "6,896 of 7,920 victims" in whats
    assert verdict.culprits == tuple(range(1, 8_000, 100))
    waiting, standing = verdict.stack_groups
    assert (waiting.count, standing.count) == (7_920, 80)
    assert parse_ranks(standing.ranks) == verdict.culprits
    assert {edge.target for edge in verdict.wait_for} == {f"rank:{one}" for one in verdict.culprits}


def test_a_thousand_ranks_with_all_that_they_say_fit_into_the_file() -> None:
    beat = Beat(
        pid=1,
        step=12_345,
        phase="training_step",
        checkpoint=CheckpointMark(12, "Training finished", "2026-11-20T10:24:00.123Z"),
    )
    views = [
        rank(n, (*DEEP, *(IN_LOAD if n % 100 == 1 else IN_ALL_REDUCE)), beat=beat)
        for n in range(1_024)
    ]
    verdict = judge(job(*views))
    assert len(encode_for_file(verdict)) <= MOST_BYTES
    assert {row.rank for row in verdict.ranks} >= {*verdict.culprits}
