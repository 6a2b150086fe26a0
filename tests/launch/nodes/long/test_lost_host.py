"""A host other than the first one loses its power, with all that runs there and its network."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from launch.nodes.cable import Cable, cable
from launch.nodes.nodes_of_a_job import (
    LONGEST_S,
    Network,
    end_all,
    hears_all,
    start,
    until_all_say,
)
from long_tests import LONG_TEST
from processes import until
from watch.launched import verdict_of

from lightning_hangcheck.text.shown import read_utc

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["cable"]
pytestmark = list(LONG_TEST)
NODES, RANKS = 3, 2
STALL_TIMEOUT_S = 30.0
LATE_S = 45.0
"""What a busy machine may add; without it the first word comes 15 to 20 s after the power went."""


@pytest.mark.parametrize("cable", [NODES], indirect=True)
def test_the_first_node_names_the_host_its_ranks_how_far_they_were_and_why(
    cable: tuple[Network, Cable], tmp_path: Path
) -> None:
    network, between = cable
    limit = ("--stall-timeout", f"{STALL_TIMEOUT_S:g}")
    nodes = first, second, third = start(network, tmp_path, ["100000"], *limit, ranks=RANKS)
    try:
        until(
            lambda: hears_all(first, NODES) and "made 150 steps" in first.said,
            "the nodes to hear each other, and eight seconds in which they tell the checkpoint",
            seconds=LONGEST_S,
        )
        assert "suspect" not in "".join(node.said for node in nodes)
        between.order("cut 2")
        third.lose_power()
        lost_s = time.time()
        until(
            lambda: first.verdict() == ("suspect", (4, 5)),
            "the first node to suspect the ranks of the host",
            seconds=LONGEST_S,
        )
        suspected = verdict_of(first.run_folder)
        until_all_say("hang", 4, 5, nodes=(first, second))
        proven = verdict_of(first.run_folder)
    finally:
        end_all(*nodes)
    for verdict in (suspected, proven):
        assert (verdict.cause, verdict.victims) == ("network_wait", (0, 1, 2, 3))
        sentence = "ranks 4-5 cannot be reached: node 2 (ranks 4-5) has not been heard for"
        assert sentence in verdict.summary
        assert "its host is down, or the network is cut" in verdict.summary
        assert "last known there: checkpoint 1 (Ranks have met)" in verdict.summary
        there = {one.rank: one for one in verdict.ranks if one.rank in verdict.culprits}
        assert {one.state for one in there.values()} == {"unseen"}
        marks = [one.last_checkpoint for one in there.values()]
        assert [mark and mark.name for mark in marks] == ["Ranks have met"] * RANKS
    assert read_utc(suspected.detected_at).timestamp() - lost_s < 20.0 + LATE_S
    assert STALL_TIMEOUT_S <= proven.stalled_for_s < STALL_TIMEOUT_S + LATE_S
    assert "node 2 (ranks 4-5) has not been heard for" in first.said
