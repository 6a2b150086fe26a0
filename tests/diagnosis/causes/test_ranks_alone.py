"""Ranks that wait at one line for others: how many they are, and whether all others were seen."""

from __future__ import annotations

import pytest
from cases import IN_BARRIER, job, rank

from lightning_hangcheck.diagnosis import judge


@pytest.mark.parametrize(
    ("seen", "world_size", "who", "for_whom"),
    [
        (1, 2, "rank 0 has waited in barrier", "for whom is open, as not all ranks were seen"),
        (2, 8, "all 2 ranks have waited in", "for whom is open, as not all ranks were seen"),
        (2, 2, "all 2 ranks have waited in", "nothing tells for whom"),
    ],
)
def test_ranks_that_wait_alike_are_counted_and_the_unseen_not_forgotten(
    seen: int, world_size: int, who: str, for_whom: str
) -> None:
    waiting = (rank(number, IN_BARRIER, silent=400.0) for number in range(seen))
    verdict = judge(job(*waiting, world_size=world_size))
    assert (verdict.verdict, verdict.cause) == ("hang", "unknown")
    assert verdict.summary.startswith(who)
    assert verdict.summary.endswith(for_whom)
