"""Nodes that torchrun numbers only when they meet, and numbers anew when a rank has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
from long_tests import LONG_TEST
from processes import PROGRAMS, end, free_port, until
from watch.launched import record_of, run_words, verdict_of

from lightning_hangcheck.rundir import RunFolder, folders_of_nodes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = list(LONG_TEST)
LONGEST_S = 120.0


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the same command as on any other node."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--max-restarts=2"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"),
        *("--nproc-per-node=1", str(PROGRAMS / "elastic_training.py"), str(folder / "failed")),
    ]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(
            run_words(command, "--stall-timeout", "8"),
            cwd=folder,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
            stdout=said,
            stderr=said,
        )


def standing(folder: Path) -> tuple[str, tuple[int, ...]]:
    try:
        newest = verdict_of(folder)
    except (OSError, msgspec.MsgspecError):
        return "", ()
    return newest.verdict, newest.culprits


def test_a_round_of_all_nodes_is_judged_by_its_own_ranks(tmp_path: Path) -> None:
    """They share a run folder, and meet in the store of torchrun's agent once that has one."""
    port = free_port()
    nodes = [start(tmp_path, port) for _ in range(2)]
    run = tmp_path / "run"
    try:
        until(lambda: folders_of_nodes(RunFolder(run)), "both nodes", seconds=LONGEST_S)
        (other,) = folders_of_nodes(RunFolder(run))
        folders = [run, other.path]
        for folder in folders:
            until(
                lambda folder=folder: standing(folder) == ("hang", (1,)),
                "both nodes to say which rank",
                seconds=LONGEST_S,
            )
            until(
                lambda folder=folder: len(record_of(folder).rounds) > 1,
                "both rounds: the end of one waits for the other node's word",
                seconds=LONGEST_S,
            )
        records = [record_of(folder) for folder in folders]
        verdicts = [verdict_of(folder) for folder in folders]
    finally:
        for node in nodes:
            end(node)
    present = {rank.pid for record in records for rank in record.ranks}
    for verdict in verdicts:
        assert {rank.rank for rank in verdict.ranks} >= {1}
        assert {rank.pid for rank in verdict.ranks} <= present
    assert max(len(verdict.ranks) for verdict in verdicts) == 2
    for record in records:
        assert [one.number for one in record.rounds] == [0, 1]
        assert record.meeting.startswith("torchrun's store at 127.0.0.1:")
    first, other = (record.rounds[0] for record in records)
    assert (first.verdict, first.culprits) == (other.verdict, other.culprits)
    assert first.summary == other.summary
    places = sorted(record.meeting.rpartition("; ")[2] for record in records)
    assert places == ["this is node 0 of 2", "this is node 1 of 2"]
