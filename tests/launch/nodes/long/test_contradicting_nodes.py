"""Nodes that were started as if they were of two jobs: one sentence each says what to mend."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launch.nodes.nodes_of_a_job import (
    ADDRESSES,
    LONGEST_S,
    Host,
    Network,
    Node,
    end_all,
    network,
    torchrun,
    variables,
)
from long_tests import LONG_TEST
from processes import PROGRAMS, until
from watch.launched import run_words

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["network"]
pytestmark = list(LONG_TEST)
TRAINING = [str(PROGRAMS / "nodes_training.py"), "100000"]
BEATING = [sys.executable, str(PROGRAMS / "beating.py"), "100000"]
SAME_NUMBER = "give each node another --node-rank (or NODE_RANK)"


def by_hand(network: Network, host: int, folder: Path, **set_there: str) -> Node:
    """A node with one rank, all variables of which are set by hand; the nodes meet in a folder."""
    words = run_words(BEATING, "--nodes-dir", str(folder / "meet"))
    environment = variables(network, host) | set_there
    return Node(network, host, folder / f"host{host}", words, host=Host(environment=environment))


def no_alarm(*nodes: Node) -> bool:
    return not any(node.verdict()[0] in ("hang", "dead", "crashed") for node in nodes)


def test_another_world_size(network: Network, tmp_path: Path) -> None:
    nodes = first, _ = [
        by_hand(network, number, tmp_path, WORLD_SIZE=str(2 + number)) for number in (0, 1)
    ]
    sentence = "node 1 says that the job has 3 ranks, node 0 that it has 2: start all nodes with"
    try:
        until(lambda: sentence in first.said, "the contradiction", seconds=LONGEST_S)
        assert no_alarm(*nodes)
    finally:
        end_all(*nodes)
    assert first.said.count(sentence) == 1


def test_one_rank_on_two_nodes(network: Network, tmp_path: Path) -> None:
    """RANK was copied with the rest of the command, NODE_RANK was not."""
    nodes = first, _ = [by_hand(network, number, tmp_path, RANK="0") for number in (0, 1)]
    sentence = f"rank 0 is on node 1 and on node 0: {SAME_NUMBER}"
    try:
        until(lambda: sentence in first.said, "the contradiction", seconds=LONGEST_S)
        assert no_alarm(*nodes)
    finally:
        end_all(*nodes)
    assert first.said.count(sentence) == 1


def test_two_nodes_of_one_number_in_a_folder(network: Network, tmp_path: Path) -> None:
    nodes = [by_hand(network, number, tmp_path, NODE_RANK="0") for number in (0, 1)]
    told = [f"another node at {other} says that it is node 0, too" for other in reversed(ADDRESSES)]
    try:
        for node, sentence in zip(nodes, told, strict=True):
            until(lambda n=node, s=sentence: s in n.said, "the contradiction", seconds=LONGEST_S)
        assert no_alarm(*nodes)
    finally:
        end_all(*nodes)
    assert all(SAME_NUMBER in node.said for node in nodes)


def test_two_torchruns_of_one_number(network: Network, tmp_path: Path) -> None:
    """Both are the first node: each serves a store, and uses that of MASTER_ADDR."""
    nodes = [
        Node(network, host, tmp_path / f"host{host}", run_words([*torchrun(network, 0), *TRAINING]))
        for host in (0, 1)
    ]
    try:
        for node in nodes:
            until(lambda node=node: SAME_NUMBER in node.said, "both to say it", seconds=LONGEST_S)
        assert no_alarm(*nodes)
    finally:
        end_all(*nodes)


def test_a_master_address_that_one_node_does_not_know(network: Network, tmp_path: Path) -> None:
    """That node says what is wrong, the first one that nothing was heard from there."""
    unknown = network._replace(first_address="no-such-host.invalid")
    nodes = first, second = [
        Node(network, host, tmp_path / f"host{host}", run_words([*torchrun(one, host), *TRAINING]))
        for host, one in enumerate((network, unknown))
    ]
    sentence = "MASTER_ADDR 'no-such-host.invalid' does not resolve here"
    try:
        until(lambda: sentence in second.said, "what is wrong", seconds=LONGEST_S)
        assert no_alarm(*nodes)
    finally:
        end_all(*nodes)
    assert "getent hosts" in second.said
    assert sentence not in first.said
