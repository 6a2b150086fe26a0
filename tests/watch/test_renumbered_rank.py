"""A process that was taken for rank 0 before it learnt its number is one rank, not two."""

from __future__ import annotations

import os

from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.watch.roster import WatchedRound


def test_a_process_that_learns_its_number_is_no_longer_rank_0() -> None:
    watched = WatchedRound(0)
    watched.take_in(FoundRank(rank=0, pid=os.getpid(), started_ticks=1, guessed=True), 1)
    watched.take_in(FoundRank(rank=1, pid=os.getpid(), started_ticks=1, world_size=2), 2)
    assert list(watched.ranks) == [1]
