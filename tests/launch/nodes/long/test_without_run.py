"""Nodes that only have the callback: no `hangcheck run` anywhere, and one verdict comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launch.nodes.nodes_of_a_job import (
    Network,
    Node,
    end_all,
    network,
    torchrun,
    until_all_say,
)
from long_tests import LONG_TEST
from processes import PROGRAMS
from watch.launched import record_of, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
pytestmark = list(LONG_TEST)
HOST = {"HANGCHECK_RUN_DIR": "run", "HANGCHECK_STALL_TIMEOUT": "12"}


def test_the_stalled_rank_of_the_other_node_is_named_on_the_first(
    network: Network, tmp_path: Path
) -> None:
    training = [str(PROGRAMS / "training_with_callback.py"), "1"]
    nodes = first, second = tuple(
        Node(
            network,
            number,
            tmp_path / f"node{number}",
            [*torchrun(network, number), *training],
            host=HOST,
        )
        for number in (0, 1)
    )
    try:
        until_all_say("hang", 1, nodes=nodes)
        verdict = verdict_of(first.run_folder)
        meetings = [record_of(node.run_folder).meeting for node in nodes]
    finally:
        end_all(*nodes)
    assert [one.rank for one in verdict.ranks] == [0, 1]
    assert (verdict.victims, verdict.nnodes) == ((0,), 2)
    assert "stand_still" in verdict.summary
    assert all(one.startswith("torchrun's store at 10.231.77.1:") for one in meetings)
    assert meetings[1].endswith("this is node 1 of 2")
    assert "rank 1" in first.said
    assert "do not hear each other" not in first.said + second.said
