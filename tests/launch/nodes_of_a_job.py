"""Nodes of one job on one machine: network namespaces, and `hangcheck run` of torchrun in each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil
import pytest
from processes import PROGRAMS, end, end_by_pid
from watch.launched import run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lightning_hangcheck.model.verdict import Verdict

TRAINING = "nodes_training.py"
PORT = 29_477
LONGEST_S = 240.0
"""Many processes import torch at once, each 2 s alone."""


class Network(NamedTuple):
    """Names of network namespaces, one a node, and of their interfaces."""

    nodes: Sequence[str]
    interfaces: Sequence[str]
    first_address: str


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=30, capture_output=True)


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


def is_rank(words: list[str]) -> bool:
    """Whether a command is the training itself, not its launcher."""
    return str(PROGRAMS / TRAINING) in words and "torch.distributed.run" not in words


class Node:
    """`hangcheck run` on one node, in a folder of its own; FOLDER/said is what it printed."""

    def __init__(
        self, network: Network, number: int, folder: Path, words: list[str], shared: Path | None
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self.run_folder = (shared or folder / "run") / (f"node-{number}" if number else "")
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
            newest = verdict_of(self.run_folder)
        except (OSError, msgspec.MsgspecError):
            return "", ()
        return newest.verdict, newest.culprits

    def rank(self) -> psutil.Process:
        """The process of this node's rank."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        (rank,) = (one for one in below if is_rank(one.cmdline()))
        return rank

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

    def lose_power(self) -> None:
        """Kill everything on this node at once; its network is to be cut before."""
        launcher = psutil.Process(self.process.pid)
        everything = [launcher, *launcher.children(recursive=True)]
        for one in everything:
            one.kill()
        psutil.wait_procs(everything, 10)
        self.process.wait(10)


def start(
    network: Network,
    folder: Path,
    training: list[str],
    *options: str,
    shared: Path | None = None,
) -> tuple[Node, ...]:
    """Start the job on all nodes, one rank on each.

    Args:
        network: They are on.
        folder: Below it, each has one of its own.
        training: Arguments of the program.
        options: Of `hangcheck run`.
        shared: Run folder for all of them; without it each has one of its own.
    """
    if shared is not None:
        options = (*options, "--run-dir", str(shared))
    nodes = []
    for number, _ in enumerate(network.nodes):
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(network.nodes)}"),
            *(f"--node-rank={number}", f"--master-addr={network.first_address}"),
            *(f"--master-port={PORT}", "--nproc-per-node=1"),
            *(str(PROGRAMS / TRAINING), *training),
        ]
        words = run_words(command, *options)
        nodes.append(Node(network, number, folder / f"node{number}", words, shared))
    return tuple(nodes)


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
        timeout=60,
        capture_output=True,
    )
    assert joined.returncode == 3, joined.stderr.decode()
    return verdict_of(into)
