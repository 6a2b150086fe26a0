"""The first node, whose torchrun serves the store, loses its power: all others go on without it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from launch.cable import Cable, cable
from launch.nodes_of_a_job import LONGEST_S, Network, Node, end_all, start
from processes import until
from watch.launched import record_of, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
__all__ = ["cable"]
NODES = 3


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
        until(lambda: "made 10 steps" in first.said, "the first steps", seconds=LONGEST_S)
        between.order("cut 0")
        first.lose_power()
        for node in (second, third):
            until(
                lambda node=node: node.verdict() == ("hang", (0,)),
                "each node to name the rank that nobody reaches",
                seconds=LONGEST_S,
            )
        assert [verdict_of(node.run_folder).cause for node in (second, third)] == [
            "network_wait"
        ] * 2
        assert {len(verdict_of(node.run_folder).ranks) for node in (second, third)} == {2}
        for node in (second, third):
            assert "node 0 (rank 0) has not been heard for" in node.said
            assert "each node judges its own ranks: hangcheck merge joins that" in node.said
        merge(second, third, into=tmp_path / "merged")
        merged = verdict_of(tmp_path / "merged")
        assert (merged.verdict, merged.culprits, merged.victims) == ("hang", (0,), (1, 2))
        assert "rank 0 cannot be reached: node 0 (rank 0) has not been heard for" in merged.summary

        reports = [node.said.count("rank 0 cannot be reached") for node in (second, third)]
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
        assert [node.said.count("rank 0 cannot be reached") for node in (second, third)] == reports

        third.rank().kill()
        assert second.process.wait(LONGEST_S) != 0
        assert "what became of the job" in second.said
        assert second.verdict() == ("hang", (0,))
    finally:
        end_all(*nodes)


def merge(*nodes: Node, into: Path) -> None:
    words = [*(str(node.run_folder) for node in nodes), "--run-dir", str(into)]
    joined = subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck", "merge", *words],
        check=False,
        timeout=100,
        capture_output=True,
    )
    assert joined.returncode == 3, joined.stderr.decode()
