"""The first node, whose torchrun serves the store, loses its power: all others go on without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from launch.nodes.cable import Cable, cable
from launch.nodes.nodes_of_a_job import LONGEST_S, Network, Node, end_all, hears_all, merge, start
from long_tests import WHEN_ASKED_FOR
from processes import until
from watch.launched import record_of, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
__all__ = ["cable"]
NODES = 3


@WHEN_ASKED_FOR  # it takes minutes; test_several_nodes loses a node, too
@pytest.mark.parametrize("cable", [NODES], indirect=True)
def test_without_a_folder_a_verdict_a_node_that_merge_joins_and_with_it_one_by_the_successor(
    cable: tuple[Network, Cable], tmp_path: Path
) -> None:
    """The folder is not there at first, then it is."""
    network, between = cable
    shared = tmp_path / "run"
    shared.mkdir()
    folder = shared / "nodes"
    folder.write_text("in the way")
    nodes = first, second, third = start(
        network, tmp_path, ["100000"], "--stall-timeout", "20", shared=shared
    )
    try:
        lose(first, between)
        for node in (second, third):
            until(
                lambda node=node: node.verdict() == ("hang", (0,)),
                "each node to name the rank that nobody reaches",
                seconds=LONGEST_S,
            )
        for node in (second, third):
            alone = verdict_of(node.run_folder)
            assert (alone.cause, len(alone.ranks)) == ("network_wait", 2)
            assert "node 0 (rank 0) has not been heard for" in node.said
            assert "each node judges its own ranks: hangcheck merge joins that" in node.said
        merged = merge(second.run_folder, third.run_folder, into=tmp_path / "merged")
        assert (merged.verdict, merged.culprits, merged.victims) == ("hang", (0,), (1, 2))
        assert "rank 0 cannot be reached: node 0 (rank 0) has not been heard for" in merged.summary

        told = [lines(node) for node in (second, third)]
        folder.unlink()
        for node in (second, third):
            until(
                lambda node=node: len(verdict_of(node.run_folder).ranks) == NODES,
                "the verdict on all ranks",
                seconds=LONGEST_S,
            )
            assert node.verdict() == ("hang", (0,))
            assert verdict_of(node.run_folder).victims == (1, 2)
            assert "is lost to some nodes: they go on in folder" in node.said
            until(
                lambda node=node: str(folder) in record_of(node.run_folder).meeting,
                "the folder in run.json",
            )
        assert [lines(node) for node in (second, third)] == told, "nothing is said twice"

        second.rank().kill()
        assert second.process.wait(LONGEST_S) != 0
        assert second.verdict() == ("hang", (0,))
        assert "later the job ended: rank 1" in second.said
    finally:
        end_all(*nodes)


def lose(first: Node, between: Cable) -> None:
    """Cut the first node off, and its power, once all train and hear each other."""
    until(
        lambda: hears_all(first, NODES) and "made 10 steps" in first.said,
        "the first steps, and the nodes to hear each other",
        seconds=LONGEST_S,
    )
    between.order("cut 0")
    first.lose_power()


def lines(node: Node) -> int:
    """Lines that name the rank, but for reminders."""
    named = [line for line in node.said.splitlines() if "rank 0 cannot be reached" in line]
    return sum("still so" not in line for line in named)
