"""`hangcheck run -- accelerate launch` on two nodes without GPUs: one verdict comes."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest
from launch.nodes.nodes_of_a_job import (
    PORT,
    Network,
    Node,
    end_all,
    network,
    until_all_say,
)
from long_tests import LONG_TEST
from processes import PROGRAMS
from watch.launched import record_of, run_words, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
INSTALLED = importlib.util.find_spec("accelerate") is not None
pytestmark = [
    *LONG_TEST,
    pytest.mark.skipif(not INSTALLED, reason="needs accelerate: pip install accelerate"),
]


def launch(network: Network, number: int) -> list[str]:
    """`accelerate launch` as its launcher page has it; the script itself asks for CPUs."""
    return [
        *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"),
        *("--num_machines", "2", "--num_processes", "2", "--machine_rank", str(number)),
        *("--main_process_ip", network.first_address, "--main_process_port", str(PORT)),
        *(str(PROGRAMS / "training_with_accelerate.py"), "1"),
    ]


def test_both_nodes_name_the_stalled_rank(network: Network, tmp_path: Path) -> None:
    options = ("--stall-timeout", "12")
    nodes = first, second = tuple(
        Node(
            network,
            number,
            tmp_path / f"node{number}",
            run_words(launch(network, number), *options),
        )
        for number in (0, 1)
    )
    try:
        until_all_say("hang", 1, nodes=nodes)
        verdict = verdict_of(first.run_folder)
    finally:
        end_all(*nodes)
    assert (verdict.victims, verdict.nnodes, len(verdict.ranks)) == ((0,), 2, 2)
    assert "stand_still" in verdict.summary
    assert record_of(second.run_folder).meeting.startswith("torchrun's store at 10.231.77.1:")
    assert record_of(second.run_folder).meeting.endswith("this is node 1 of 2")
