"""Four nodes on a network that is slow, loses packets, is cut, and comes back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from launch.nodes.cable import Cable, cable
from launch.nodes.nodes_of_a_job import LONGEST_S, Network, Node, end_all, start
from long_tests import LONG_TEST
from processes import until
from watch.launched import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

__all__ = ["cable"]
pytestmark = list(LONG_TEST)


def made(node: Node) -> int:
    """Steps of the rank there, right to ten."""
    return max((int(one) for one in re.findall(r"made (\d+) steps", node.said)), default=0)


@pytest.mark.parametrize("cable", [4], indirect=True)
def test_a_node_that_is_cut_off_and_a_rank_that_is_killed_are_named_by_the_first_node(
    cable: tuple[Network, Cable], tmp_path: Path
) -> None:
    """Before that, 200 ms of delay and lost packets are no news."""
    network, between = cable
    left: list[psutil.Process] = []
    nodes = first, *_ = start(network, tmp_path, ["100000"])
    try:
        until(lambda: "made 10 steps" in first.said, "the first steps", seconds=LONGEST_S)
        between.order("delay 0.2")
        between.order("loss 0.01")
        before = made(first)
        until(lambda: made(first) >= before + 20, "steps over a bad network", seconds=LONGEST_S)
        assert "suspect" not in "".join(node.said for node in nodes)
        between.order("delay 0")
        between.order("loss 0")

        between.order("cut 3")
        until(
            lambda: first.verdict() == ("suspect", (3,)),
            "the first node to name the rank that nobody reaches",
            seconds=LONGEST_S,
        )
        verdict = verdict_of(first.run_folder)
        assert verdict.cause == "network_wait"
        assert "rank 3 cannot be reached: node 3 (rank 3) has not been heard for" in verdict.summary
        assert "its host is down, or the network is cut" in verdict.summary
        assert verdict.victims == (0, 1, 2)

        between.order("join 3")
        until(lambda: first.verdict()[0] == "recovered", "the job to go on", seconds=LONGEST_S)
        until(
            lambda: "node 3 (rank 3) is heard again" in first.said,
            "the first node to hear the other again",
            seconds=LONGEST_S,
        )

        left = nodes[2].kill_watch()
        until(
            lambda: "node 2 (rank 2) has not been heard for" in first.said,
            "the first node to say that another is silent",
            seconds=LONGEST_S,
        )
        assert "still carry something: only its sidecar is dead" in first.said
        assert first.verdict()[0] == "recovered", "no alarm: its ranks go on"

        nodes[3].rank().kill()
        first.process.wait(LONGEST_S)
        assert first.verdict() == ("crashed", (3,)), first.said
        assert "rank 3 failed first: it was killed by SIGKILL" in first.said
    finally:
        end_all(*nodes, others=left)
