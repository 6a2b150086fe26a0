"""Nodes that only have the callback: no `hangcheck run` anywhere, and one verdict comes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from launch.nodes_of_a_job import LONGEST_S, Host, Network, Node, end_all, network, torchrun
from processes import PROGRAMS, until
from watch.launched import record_of, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
ASKED_FOR = "RUN_LONG_TESTS" in os.environ
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not ASKED_FOR, reason="it takes a minute; RUN_LONG_TESTS=1 runs it"),
]
HOST = Host(environment={"HANGCHECK_RUN_DIR": "run", "HANGCHECK_STALL_TIMEOUT": "12"})


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
        for node in nodes:
            until(
                lambda node=node: node.verdict() == ("hang", (1,)),
                "both nodes to say which rank",
                seconds=LONGEST_S,
            )
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
