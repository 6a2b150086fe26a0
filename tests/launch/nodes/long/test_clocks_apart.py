"""Nodes whose wall clocks are hours apart, and that started at other times: the same verdict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launch.nodes.long.other_clock import host_with_clocks
from launch.nodes.nodes_of_a_job import (
    LONGEST_S,
    Network,
    end_all,
    merge,
    network,
    start,
    until_all_say,
)
from long_tests import LONG_TEST
from watch.launched import record_of, verdict_of

from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
pytestmark = list(LONG_TEST)
FIRST_AHEAD_S, SECOND_AHEAD_S = -5 * 3600, 3 * 3600
UP_S = 40 * 86_400
STALL_TIMEOUT_S = 12.0


def test_clocks_that_are_hours_apart_change_no_verdict_and_are_shown(
    network: Network, tmp_path: Path
) -> None:
    """The first node is five hours behind, the other three ahead, and up for 40 days longer."""
    hosts = {
        0: host_with_clocks(tmp_path / "clock0", FIRST_AHEAD_S),
        1: host_with_clocks(tmp_path / "clock1", SECOND_AHEAD_S, UP_S),
    }
    limit = ("--stall-timeout", f"{STALL_TIMEOUT_S:g}")
    nodes = first, second = start(network, tmp_path, ["40", "1"], *limit, hosts=hosts)
    try:
        until_all_say("hang", 1, nodes=nodes)
        verdict, record = verdict_of(first.run_folder), record_of(first.run_folder)
        now_s = time.time()
        merged = merge(*(node.run_folder for node in nodes), into=tmp_path / "merged")
        second.rank().kill()
        assert first.process.wait(LONGEST_S) != 0
    finally:
        end_all(*nodes)
    assert (verdict.victims, verdict.cause) == ((0,), "rank_stalled")
    assert "stand_still" in verdict.summary
    assert STALL_TIMEOUT_S <= verdict.stalled_for_s < 120.0
    assert abs(read_utc(verdict.detected_at).timestamp() - now_s - FIRST_AHEAD_S) < LONGEST_S
    (clock,) = record.clocks
    assert clock.within_s < 2.0
    assert abs(clock.ahead_s - (SECOND_AHEAD_S - FIRST_AHEAD_S)) <= clock.within_s + 0.1
    assert (merged.verdict, merged.culprits, merged.victims) == ("hang", (1,), (0,))
    assert abs(merged.stalled_for_s - verdict.stalled_for_s) < 120.0
    assert "later the job ended: rank 1" in first.said
