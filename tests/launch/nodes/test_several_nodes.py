"""Two nodes, each with a network of its own: their sidecars hear each other, one verdict comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from launch.nodes.nodes_of_a_job import LONGEST_S, Network, end_all, merge, network, start
from processes import is_alive, until
from watch.launched import record_of, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    import psutil


pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
__all__ = ["network"]


def test_the_first_node_names_a_rank_of_the_other_which_judges_where_it_falls_silent(
    network: Network, tmp_path: Path
) -> None:
    """In torchrun's own store; what both have saved can be joined afterwards."""
    nodes = first, second = start(network, tmp_path, ["20", "1"], "--stall-timeout", "12")
    left: list[psutil.Process] = []
    try:
        for node in nodes:
            until(
                lambda node=node: node.verdict() == ("hang", (1,)),
                "both nodes to say which rank",
                seconds=LONGEST_S,
            )
        assert "stand_still" in verdict_of(first.run_folder).summary
        assert "torchrun's store" in record_of(first.run_folder).meeting
        assert {one.rank for one in verdict_of(first.run_folder).ranks} == {0, 1}
        until(
            lambda: record_of(first.run_folder).clocks,
            "the first node to know the other's clock",
            seconds=LONGEST_S,
        )
        (clock,) = record_of(first.run_folder).clocks
        assert abs(clock.ahead_s) <= clock.within_s + 0.001, "both have this machine's clock"
        left = first.kill_watch()
        until(
            lambda: "node 0 (rank 0) has not been heard for" in second.said,
            "the other node to say that the first one is silent",
            seconds=LONGEST_S,
        )
        assert "this node judges for all that are heard" in second.said
        assert second.verdict() == ("hang", (1,))
        assert [is_alive(one) for one in left] == [True, True], "torchrun and its rank"
        merged = merge(*(node.run_folder for node in nodes), into=tmp_path / "merged")
        assert (merged.verdict, merged.culprits, merged.victims) == ("hang", (1,), (0,))
    finally:
        end_all(*nodes, others=left)
