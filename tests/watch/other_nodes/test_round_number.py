"""Nodes that saw fewer rounds than others take their number, where it is the same start."""

from __future__ import annotations

import time

import pytest
from cases import SECOND
from msgspec.structs import replace

from lightning_hangcheck.machine import TICKS_PER_SECOND, ticks_since_boot
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.run import RoundStart
from lightning_hangcheck.nodes.peers import Heard
from lightning_hangcheck.nodes.word import VERSION, RoundMark, Word, class_of
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.watched_rank import WatchedRound
from lightning_hangcheck.watch.other_nodes.joining import agreed_number, mark_of

PORT = 29_512
TORCHRUN = RoundStart(launcher="torchrun", number=0, most=3)
THERE = Word(
    version=VERSION,
    node=1,
    stamp=7,
    round=2,
    world_size=2,
    local_world_size=1,
    mark=RoundMark(20.0, PORT),
)


def joined(seconds: float, launcher: str = "torchrun") -> WatchedRound:
    """A node's own first round, whose rank was started so long ago."""
    watched = WatchedRound(0)
    watched.take_in(
        FoundRank(
            rank=0,
            pid=10,
            started_ticks=ticks_since_boot() - int(seconds * TICKS_PER_SECOND),
            world_size=2,
            local_world_size=1,
            start=replace(TORCHRUN, launcher=launcher),
            store_port=PORT,
        ),
        0,
    )
    return watched


def heard(word: Word, number: int = 1, ago_s: float = 0.0) -> Heard:
    told_ns = time.monotonic_ns() - int(ago_s * SECOND)
    line = class_of(RankView(rank=number), (), 0)
    return Heard(replace(word, lines=(line,)), told_ns)


def agreed(watched: WatchedRound, *told: Heard) -> int:
    return agreed_number(watched, mark_of(watched), told, time.monotonic_ns())


def test_a_node_that_joined_late_counts_as_the_others_do() -> None:
    assert agreed(joined(20.0), heard(THERE)) == 2
    assert agreed(joined(60.0), heard(THERE, ago_s=40.0)) == 2


def test_of_several_numbers_the_highest_counts_and_ones_own_is_never_lowered() -> None:
    third = replace(THERE, node=2, round=4)
    assert agreed(joined(20.0), heard(THERE), heard(third, 2)) == 4
    ahead = joined(20.0)
    ahead.number = 5
    assert agreed(ahead, heard(THERE)) == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"mark": RoundMark(60.0, PORT)},
        {"mark": RoundMark(20.0, PORT + 1), "world_size": 3},
        {"mark": RoundMark()},
        {"world_size": 3},
    ],
    ids=["started before", "another store", "a version that tells neither", "another size"],
)
def test_another_start_keeps_its_number(changes: dict[str, object]) -> None:
    told = replace(THERE, **changes)  # type: ignore[arg-type]
    assert agreed(joined(20.0), heard(told)) == 0


def test_what_may_still_be_of_the_round_before_keeps_its_number() -> None:
    young = replace(THERE, mark=RoundMark(2.0, PORT))
    assert agreed(joined(2.0), heard(young)) == 0
    ended = joined(20.0)
    ended.note_exit(10, 1)
    assert agreed(ended, heard(THERE)) == 0
    assert agreed(joined(20.0), heard(THERE, number=0)) == 0, "both have rank 0"


def test_only_torchrun_starts_all_ranks_together() -> None:
    assert mark_of(joined(20.0, launcher="slurm")) == RoundMark()
    assert agreed(joined(20.0, launcher="slurm"), heard(THERE)) == 0


def test_nodes_that_have_each_rank_once_are_of_one_start_though_torchrun_sends_them_apart() -> None:
    """torch 2.13 hands out addresses of an earlier round: their ranks wait at two stores."""
    apart = replace(THERE, mark=RoundMark(20.0, PORT + 1))
    assert agreed(joined(20.0), heard(apart)) == 2
    assert agreed(joined(20.0), heard(apart, number=2)) == 0
    assert agreed(joined(20.0), heard(replace(apart, mark=RoundMark(40.0, PORT + 1)))) == 0
