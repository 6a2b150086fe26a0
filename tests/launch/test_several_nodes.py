"""Two nodes, each with a network of its own: their sidecars hear each other, one verdict comes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil
import pytest
from processes import PROGRAMS, end, end_by_pid, is_alive, until
from watch.launched import record_of, run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
FIRST_ADDRESS, SECOND_ADDRESS = "10.231.77.1", "10.231.77.2"
PORT = 29_477
LONGEST_S = 240.0
"""Six processes import torch at once, each 2 s alone."""


class Network(NamedTuple):
    """Names of network namespaces, one a node; each has one interface, of the same name."""

    nodes: tuple[str, str]
    interfaces: tuple[str, str]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    """Two network namespaces, joined by a cable of the kernel's (veth)."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2's ip")
    mark = f"hc{os.getpid()}"
    nodes, interfaces = (f"{mark}-0", f"{mark}-1"), (f"{mark}a", f"{mark}b")
    try:
        ip("netns", "add", nodes[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", nodes[1])
        ip("link", "add", interfaces[0], "netns", nodes[0], "type", "veth", "peer", "name",
           interfaces[1], "netns", nodes[1])  # fmt: skip
        for node, interface, address in zip(
            nodes, interfaces, (FIRST_ADDRESS, SECOND_ADDRESS), strict=True
        ):
            ip("-n", node, "addr", "add", f"{address}/24", "dev", interface)
            ip("-n", node, "link", "set", interface, "up")
            ip("-n", node, "link", "set", "lo", "up")
        yield Network(nodes, interfaces)
    finally:
        for node in nodes:
            subprocess.run(["ip", "netns", "del", node], check=False, capture_output=True)


class Node:
    """`hangcheck run` on one node; FOLDER/run is its run folder, FOLDER/said what it printed."""

    def __init__(self, network: Network, number: int, folder: Path, words: list[str]) -> None:
        folder.mkdir()
        self.folder = folder
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", network.nodes[number], *words],
                cwd=folder,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "",
                    "GLOO_SOCKET_IFNAME": network.interfaces[number],
                    "OMP_NUM_THREADS": "1",
                },
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def verdict(self) -> tuple[str, tuple[int, ...]]:
        try:
            newest = verdict_of(self.folder / "run")
        except (OSError, msgspec.MsgspecError):
            return "", ()
        return newest.verdict, newest.culprits

    def kill_watch(self) -> list[psutil.Process]:
        """Kill `hangcheck run` and its sidecar, and return the job, which is left alone."""
        launcher = psutil.Process(self.process.pid)
        below = launcher.children(recursive=True)
        ours = [one for one in below if "lightning_hangcheck." in " ".join(one.cmdline())]
        assert any("lightning_hangcheck.watch.sidecar" in one.cmdline() for one in ours)
        for one in (launcher, *ours):
            one.kill()
        self.process.wait(10)
        return [one for one in below if one not in ours]


def start(network: Network, folder: Path, training: list[str], *options: str) -> tuple[Node, Node]:
    """Start the job on both nodes."""
    nodes = []
    for number in range(2):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
            *(f"--node-rank={number}", f"--master-addr={FIRST_ADDRESS}", f"--master-port={PORT}"),
            *("--nproc-per-node=1", str(PROGRAMS / "nodes_training.py"), *training),
        ]
        words = run_words(command, *options)
        nodes.append(Node(network, number, folder / f"node{number}", words))
    return nodes[0], nodes[1]


def end_all(*nodes: Node, others: Sequence[psutil.Process] = ()) -> None:
    end_by_pid(others)
    for node in nodes:
        end(node.process)


def test_nodes_that_meet_in_a_folder_and_get_on_are_no_news(
    network: Network, tmp_path: Path
) -> None:
    meet = tmp_path / "meet"
    nodes = start(network, tmp_path, ["100"], "--nodes-dir", str(meet))
    try:
        codes = [node.process.wait(LONGEST_S) for node in nodes]
    finally:
        end_all(*nodes)
    assert codes == [0, 0], [node.said for node in nodes]
    assert [node.verdict()[0] for node in nodes] == ["finished", "finished"]
    assert "suspect" not in nodes[0].said + nodes[1].said
    assert record_of(nodes[1].folder / "run").meeting.endswith("this is node 1 of 2")
    (job,) = meet.iterdir()
    assert sorted(one.name for one in job.iterdir()) == ["first", "node-0", "node-1"]
    assert job.stat().st_mode & 0o077 == 0


def test_the_first_node_names_a_rank_of_the_other_and_then_the_node_that_fell_silent(
    network: Network, tmp_path: Path
) -> None:
    """In torchrun's own store; the job itself goes on whatever happens to the second sidecar."""
    nodes = first, second = start(network, tmp_path, ["20", "1"], "--stall-timeout", "12")
    left: list[psutil.Process] = []
    try:
        for node in nodes:
            until(
                lambda node=node: node.verdict() == ("hang", (1,)),
                "both nodes to say which rank",
                seconds=LONGEST_S,
            )
        assert "stand_still" in verdict_of(first.folder / "run").summary
        assert "torchrun's store" in record_of(first.folder / "run").meeting
        assert {one.rank for one in verdict_of(first.folder / "run").ranks} == {0, 1}
        left = second.kill_watch()
        until(
            lambda: "node 1 (rank 1) has not been heard for" in first.said,
            "the first node to say that the other is silent",
            seconds=LONGEST_S,
        )
        assert all(map(is_alive, left))
    finally:
        end_all(*nodes, others=left)
