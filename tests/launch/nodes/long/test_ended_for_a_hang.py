"""Where the job is ended for a hang, the store by which its nodes hear of it goes with the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launch.nodes.nodes_of_a_job import Network, end_all, network, start
from long_tests import LONG_TEST
from watch.launched import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
pytestmark = list(LONG_TEST)
LONGEST_S = 150.0
ABORTED = 75


def test_each_node_knows_the_verdict_before_the_job_is_ended_for_it(
    network: Network, tmp_path: Path
) -> None:
    nodes = start(network, tmp_path, ["20", "1"], "--stall-timeout", "12", "--on-hang", "abort")
    try:
        codes = [node.process.wait(LONGEST_S) for node in nodes]
    finally:
        end_all(*nodes)
    assert [node.verdict() for node in nodes] == [("hang", (1,))] * 2, [one.said for one in nodes]
    assert codes == [ABORTED] * 2
    first, second = (verdict_of(node.run_folder) for node in nodes)
    assert first.detected_at == second.detected_at, "it is one verdict, none of the node's own"
    assert {one.rank for one in second.ranks} == {0, 1}
