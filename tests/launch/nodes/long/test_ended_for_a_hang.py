"""Where the job is ended for a hang, the store by which its nodes hear of it goes with the job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from launch.nodes.nodes_of_a_job import (
    ADDRESSES,
    PORT,
    TRAINING,
    Network,
    Node,
    end_all,
    network,
    torchrun,
)
from long_tests import LONG_TEST
from processes import PROGRAMS
from watch.launched import run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["network"]
pytestmark = list(LONG_TEST)
LONGEST_S = 150.0
ABORTED = 75


def store_on_the_second(_: Network, number: int) -> tuple[str, ...]:
    """The first node judges, as its address is the lowest, and the other one serves the store."""
    return (
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", "--rdzv-id=ended", f"--rdzv-endpoint={ADDRESSES[1]}:{PORT}"),
        *(f"--local-addr={ADDRESSES[number]}", f"--rdzv-conf=is_host={number}"),
    )


@pytest.mark.parametrize("launcher", [torchrun, store_on_the_second])
def test_each_node_knows_the_verdict_before_the_job_is_ended_for_it(
    network: Network, tmp_path: Path, launcher: Callable[[Network, int], tuple[str, ...]]
) -> None:
    nodes = []
    for number in range(2):
        command = [*launcher(network, number), str(PROGRAMS / TRAINING), "20", "1"]
        words = run_words(command, "--stall-timeout", "12", "--on-hang", "abort")
        nodes.append(Node(network, number, tmp_path / f"node{number}", words))
    try:
        codes = [node.process.wait(LONGEST_S) for node in nodes]
    finally:
        end_all(*nodes)
    assert codes == [ABORTED] * 2, [one.said for one in nodes]
    newest = (min((node.folder / "run").rglob("verdict.json")) for node in nodes)
    first, second = (verdict_of(file.parent) for file in newest)
    assert (first.verdict, first.culprits) == (second.verdict, second.culprits) == ("hang", (1,))
    assert first.detected_at == second.detected_at, "it is one verdict, none of the node's own"
    assert {one.rank for one in second.ranks} == {0, 1}
