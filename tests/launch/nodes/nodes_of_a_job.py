"""Nodes of one job on one machine: network namespaces, and `hangcheck run` of torchrun in each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil
import pytest
from processes import PATIENCE_S, PROGRAMS, command_of, end, end_by_pid, is_sidecar, until
from watch.launched import run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lightning_hangcheck.model.verdict import Verdict

TRAINING = "nodes_training.py"
PORT = 29_477
ADDRESSES = "10.231.77.1", "10.231.77.2"
LONGEST_S = 480.0
"""Many processes import torch at once, each 2 s alone, and half a minute on a starved machine."""


class Network(NamedTuple):
    """Names of network namespaces, one a node, and of their interfaces."""

    nodes: Sequence[str]
    interfaces: Sequence[str]
    first_address: str


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=120, capture_output=True)


@contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """So many network namespaces with a loopback that is up; skips where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2's ip")
    names = [f"hc{os.getpid()}-{number}" for number in range(count)]
    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        for name in names[1:]:
            ip("netns", "add", name)
        for name in names:
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    """Two network namespaces, joined by a cable of the kernel's (veth)."""
    with namespaces(2) as nodes:
        interfaces = [f"hc{os.getpid()}{side}" for side in "ab"]
        ip("link", "add", interfaces[0], "netns", nodes[0], "type", "veth", "peer", "name",
           interfaces[1], "netns", nodes[1])  # fmt: skip
        for node, interface, address in zip(nodes, interfaces, ADDRESSES, strict=True):
            ip("-n", node, "addr", "add", f"{address}/24", "dev", interface)
            ip("-n", node, "link", "set", interface, "up")
        yield Network(nodes, interfaces, ADDRESSES[0])


def is_rank(words: list[str]) -> bool:
    """Whether a command is the training itself, not its launcher."""
    return str(PROGRAMS / TRAINING) in words and "torch.distributed.run" not in words


class Node:
    """A command on one node, in a folder of its own; FOLDER/said is what it printed."""

    def __init__(
        self,
        network: Network,
        number: int,
        folder: Path,
        words: Sequence[str],
        host: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self.run_folder = folder / "run" / (f"node-{number}" if number else "")
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", network.nodes[number], *words],
                cwd=folder,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "",
                    "GLOO_SOCKET_IFNAME": network.interfaces[number],
                    "OMP_NUM_THREADS": "1",
                    **(host or {}),
                },
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def verdict(self) -> tuple[str, tuple[int, ...]]:
        try:
            newest = verdict_of(self.run_folder)
        except (OSError, msgspec.MsgspecError):
            return "", ()
        return newest.verdict, newest.culprits

    def rank(self) -> psutil.Process:
        """The process of this node's rank."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        (rank,) = (one for one in below if is_rank(command_of(one)))
        return rank

    def kill_watch(self) -> list[psutil.Process]:
        """Kill `hangcheck run` and its sidecar; return torchrun and the rank, which are left alone.

        What the sidecar has started besides, as py-spy for a look, ends by itself.
        """
        launcher = psutil.Process(self.process.pid)
        below = launcher.children(recursive=True)
        job = [one for one in below if str(PROGRAMS / TRAINING) in command_of(one)]
        ours = [one for one in below if "lightning_hangcheck." in " ".join(command_of(one))]
        assert any(is_sidecar(one) for one in ours)
        for one in (launcher, *ours):
            with suppress(psutil.NoSuchProcess):  # what works for a look ends by itself
                one.kill()
        self.process.wait(PATIENCE_S)
        return job


def start(
    network: Network,
    folder: Path,
    training: list[str],
    *options: str,
) -> tuple[Node, ...]:
    """Start the job on all nodes."""
    nodes = []
    for number, _ in enumerate(network.nodes):
        command = [*torchrun(network, number), str(PROGRAMS / TRAINING), *training]
        words = run_words(command, *options)
        nodes.append(Node(network, number, folder / f"node{number}", words))
    return tuple(nodes)


def torchrun(network: Network, number: int) -> tuple[str, ...]:
    """The words in front of a script that torchrun starts on one node."""
    return (
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(network.nodes)}"),
        *(f"--node-rank={number}", f"--master-addr={network.first_address}"),
        *(f"--master-port={PORT}", "--nproc-per-node=1"),
    )


def variables(network: Network, number: int) -> dict[str, str]:
    """What somebody sets by hand who starts the only rank of each of two nodes."""
    return {
        "MASTER_ADDR": network.first_address,
        "MASTER_PORT": str(PORT),
        "NODE_RANK": str(number),
        "RANK": str(number),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def until_all_say(kind: str, *culprits: int, nodes: Sequence[Node]) -> None:
    """Wait until the newest verdict of each of these nodes is this one."""
    for node in nodes:
        until(
            lambda node=node: node.verdict() == (kind, culprits),
            f"each node to say {kind} of {culprits}",
            seconds=LONGEST_S,
        )


def end_all(*nodes: Node, others: Sequence[psutil.Process] = ()) -> None:
    end_by_pid(others)
    for node in nodes:
        end(node.process)


def merge(*folders: Path, into: Path) -> Verdict:
    """Join what these run folders hold by `hangcheck merge`, which finds a hang."""
    words = [*map(str, folders), "--run-dir", str(into)]
    joined = subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck", "merge", *words],
        check=False,
        timeout=120,
        capture_output=True,
    )
    assert joined.returncode == 3, joined.stderr.decode()
    return verdict_of(into)
