"""Two nodes, each with a network of its own: their sidecars hear each other, one verdict comes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from processes import (
    PATIENCE_S,
    PROGRAMS,
    command_of,
    end,
    end_by_pid,
    is_alive,
    is_sidecar,
    run_python,
    until,
)
from watch.launched import record_of, run_words, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
TRAINING = str(PROGRAMS / "nodes_training.py")
ADDRESSES = "10.231.77.1", "10.231.77.2"
LONGEST_S = 480.0
"""Many processes import torch at once, each 2 s alone, and half a minute on a starved machine."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=120, capture_output=True)


@pytest.fixture
def network() -> Iterator[list[str]]:
    """Two network namespaces, joined by a cable of the kernel's (veth); skips where none can be."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2's ip")
    names = [f"hc{os.getpid()}{side}" for side in "ab"]
    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name",
           names[1], "netns", names[1])  # fmt: skip
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Node:
    """`hangcheck run` of torchrun on one node, in a folder of its own; FOLDER/said is its output.

    Rank 1 stands still after 20 steps.
    """

    def __init__(self, name: str, number: int, folder: Path) -> None:
        folder.mkdir()
        self._said = folder / "said"
        self.run_folder = folder / "run" / (f"node-{number}" if number else "")
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={number}"),
            *(f"--master-addr={ADDRESSES[0]}", "--master-port=29477", "--nproc-per-node=1"),
        ]
        words = run_words([*torchrun, TRAINING, "20", "1"], "--stall-timeout", "12")
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", name, *words],
                cwd=folder,
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": "",
                    "GLOO_SOCKET_IFNAME": name,
                    "OMP_NUM_THREADS": "1",
                },
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def verdict(self) -> tuple[str, tuple[int, ...]]:
        try:
            newest = verdict_of(self.run_folder)
        except (OSError, msgspec.MsgspecError):
            return "", ()
        return newest.verdict, newest.culprits

    def kill_watch(self) -> list[psutil.Process]:
        """Kill `hangcheck run` and its sidecar; return torchrun and the rank, which are left alone.

        What the sidecar has started besides, as py-spy for a look, ends by itself.
        """
        launcher = psutil.Process(self.process.pid)
        below = launcher.children(recursive=True)
        job = [one for one in below if TRAINING in command_of(one)]
        ours = [one for one in below if "lightning_hangcheck." in " ".join(command_of(one))]
        assert any(is_sidecar(one) for one in ours)
        for one in (launcher, *ours):
            with suppress(psutil.NoSuchProcess):  # what works for a look ends by itself
                one.kill()
        self.process.wait(PATIENCE_S)
        return job


def test_the_first_node_names_a_rank_of_the_other_which_judges_where_it_falls_silent(
    network: list[str], tmp_path: Path
) -> None:
    """In torchrun's own store; what both have saved can be joined afterwards."""
    nodes = [Node(name, number, tmp_path / name) for number, name in enumerate(network)]
    first, second = nodes
    left: list[psutil.Process] = []
    try:
        for node in nodes:
            until(
                lambda node=node: node.verdict() == ("hang", (1,)),
                "both nodes to say which rank",
                seconds=LONGEST_S,
            )
        assert "stand_still" in verdict_of(first.run_folder).summary
        assert "torchrun's store" in record_of(first.run_folder).meeting
        assert {one.rank for one in verdict_of(first.run_folder).ranks} == {0, 1}
        left = first.kill_watch()
        until(
            lambda: "node 0 (rank 0) has not been heard for" in second.said,
            "the other node to say that the first one is silent",
            seconds=LONGEST_S,
        )
        assert "this node judges for all that are heard" in second.said
        assert second.verdict() == ("hang", (1,))
        assert [is_alive(one) for one in left] == [True, True], "torchrun and its rank"
        merging = ("-m", "lightning_hangcheck", "merge", "--run-dir", "merged")
        joined = run_python(*merging, *(node.run_folder for node in nodes), folder=tmp_path)
        assert joined.returncode == 3, joined.stderr
        merged = verdict_of(tmp_path / "merged")
        assert (merged.verdict, merged.culprits, merged.victims) == ("hang", (1,), (0,))
    finally:
        end_by_pid(left)
        for node in nodes:
            end(node.process)
