"""A rank of the second node leaves the way of all others: both nodes name it, and the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from launch.nodes.nodes_of_a_job import Network, end_all, network, start, until_all_say
from long_tests import LONG_TEST
from watch.launched import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [*LONG_TEST]
__all__ = ["network"]


@pytest.mark.parametrize(
    ("mode", "ranks", "cause", "stands_in"),
    [
        pytest.param("skips", 1, "rank_diverged", "barrier", id="by what it did before"),
        pytest.param("mistakes", 2, "collective_mismatch", "reduce", id="by the majority"),
    ],
)
def test_both_nodes_name_the_rank_that_departed_and_how(
    mode: str, ranks: int, cause: str, stands_in: str, network: Network, tmp_path: Path
) -> None:
    """Each collective came together over the network until then; what tells is on both nodes."""
    culprit = 2 * ranks - 1
    nodes = start(network, tmp_path, ["5", str(culprit), mode], ranks=ranks)
    try:
        until_all_say("hang", culprit, nodes=nodes)
        verdicts = [verdict_of(node.run_folder) for node in nodes]
    finally:
        end_all(*nodes)
    for verdict in verdicts:
        assert (verdict.cause, verdict.victims) == (cause, tuple(range(culprit)))
        assert {one.rank for one in verdict.ranks} == set(range(2 * ranks))
        assert f"waits in {stands_in} called in" in verdict.summary, verdict.summary
