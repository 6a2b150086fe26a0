"""A store that the first node's sidecar serves to another host: no launcher's store, no folder."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from launch.nodes.nodes_of_a_job import (
    LONGEST_S,
    PORT,
    Network,
    Node,
    end_all,
    network,
    until_all_say,
    variables,
)
from long_tests import LONG_TEST
from processes import ANNOUNCE, PROGRAMS, end, until
from watch.launched import record_of, run_words, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
pytestmark = list(LONG_TEST)
SECRET = "0b5f7d2e9c1a4368"  # noqa: S105 - of this test alone
OFFERED = PORT + 1
SENTENCE = "is not used, it has no seal of this job"
BY_HAND = [sys.executable, str(PROGRAMS / "nodes_training.py"), "40", "1"]
OF_LIGHTNING = "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "HANGCHECK_NODES_TOKEN"
LIGHTNING = [sys.executable, str(PROGRAMS / "slurm_training.py"), "1"]


def start(network: Network, number: int, folder: Path, words: list[str]) -> Node:
    """One node with one rank: Lightning's own environment, or all variables by hand."""
    environment = {**variables(network, number), "HANGCHECK_NODES_TOKEN": SECRET}
    if words is LIGHTNING:
        environment = {name: environment[name] for name in OF_LIGHTNING}
    options = ("--nodes-port", str(OFFERED), "--stall-timeout", "12")
    return Node(network, number, folder, run_words(words, *options), host=environment)


def forge(network: Network) -> tuple[subprocess.Popen[bytes], int]:
    """Start somebody on the second host who has not the secret."""
    heard, tells = os.pipe()
    program = [sys.executable, str(PROGRAMS / "forging_words.py")]
    forging = subprocess.Popen(
        [*("ip", "netns", "exec", network.nodes[1]), *program, network.first_address, str(OFFERED)],
        env={**os.environ, ANNOUNCE: str(tells), "OMP_NUM_THREADS": "1"},
        pass_fds=[tells],
    )
    os.close(tells)
    return forging, heard


@pytest.mark.parametrize("words", [LIGHTNING, BY_HAND], ids=["Lightning", "by hand"])
def test_nodes_meet_there_and_believe_no_word_without_their_secret(
    words: list[str], network: Network, tmp_path: Path
) -> None:
    nodes = first, second = [
        start(network, number, tmp_path / f"node{number}", words) for number in (0, 1)
    ]
    forging, heard = None, -1
    try:
        until(
            lambda: (
                (first.run_folder / "run.json").exists()
                and record_of(first.run_folder).meeting.startswith("the first sidecar's store at")
            ),
            "the first node to offer a store",
            seconds=LONGEST_S,
        )
        forging, heard = forge(network)
        assert os.read(heard, 1), "it reached the store, and saw a sealed word of node 1"
        until(lambda: SENTENCE in second.said, "the forged word", seconds=LONGEST_S)
        end(forging)
        until_all_say("hang", 1, nodes=nodes)
        verdict = verdict_of(first.run_folder)
    finally:
        if forging is not None:
            end(forging)
            os.close(heard)
        end_all(*nodes)
    assert (verdict.victims, len(verdict.ranks)) == ((0,), 2)
    assert "stand_still" in verdict.summary
    assert second.said.count(SENTENCE) == 1
    assert "forged" not in second.said
    where = f"the first sidecar's store at {network.first_address}:{OFFERED}"
    assert record_of(second.run_folder).meeting.startswith(where)
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file
