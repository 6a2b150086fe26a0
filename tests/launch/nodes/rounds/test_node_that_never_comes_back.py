"""A job of fixed size loses a node, and no other takes its place: torchrun waits, and we say so.

Each takes half a minute, of which torchrun waits 15 s until it knows: RUN_LONG_TESTS=1 runs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from launch.nodes.rounds.test_replaced_node import endpoint, kill
from long_tests import LONG_TEST
from processes import PROGRAMS, end, until
from watch.launched import record_of, run_words, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = list(LONG_TEST)
LONGEST_S = 120.0


def start(folder: Path, store: str, name: str, how: str) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--max-restarts=2"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={store}", "--rdzv-conf=is_host=0"),
        *("--local-addr=127.0.0.1", "--nproc-per-node=1"),
        *(str(PROGRAMS / "waits_for_a_file.py"), str(folder)),
    ]
    words = run_words(command, "--stall-timeout", "20")
    if how == "callback":
        words = [*command, "watched"]
    number = "ab".index(name)
    slurm = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    slurm |= {"SLURM_PROCID": f"{number}", "SLURM_NODEID": f"{number}", "SLURM_LOCALID": "0"}
    (folder / name).mkdir()
    with (folder / name / "said").open("wb") as said:
        return subprocess.Popen(
            words,
            cwd=folder / name,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "OMP_NUM_THREADS": "1",
                "HANGCHECK_RUN_DIR": "run",
                "HANGCHECK_STALL_TIMEOUT": "20",
                **(slurm if how == "slurm" else {}),
            },
            stdout=said,
            stderr=said,
        )


def run_folder(node: Path) -> Path | None:
    """Where its run is kept: torchrun numbers the nodes, and the callback goes by that."""
    return next((found.parent for found in (node / "run").rglob("run.json")), None)


def standing(folder: Path) -> str:
    try:
        return verdict_of(folder).verdict
    except (OSError, msgspec.MsgspecError):
        return ""


@pytest.mark.parametrize("how", ["run", "at once", "slurm", "callback"])
def test_the_node_that_is_left_says_for_whom_torchrun_waits(how: str, tmp_path: Path) -> None:
    """Also where its rank came and failed between two looks at the processes."""
    if how == "at once":
        (tmp_path / "fail").touch()
    with endpoint() as store:
        nodes = {name: start(tmp_path, store, name, how) for name in "ab"}
        try:
            for number in range(2):
                until((tmp_path / f"rank-{number}").exists, "both ranks", seconds=LONGEST_S)
            run = until(lambda: run_folder(tmp_path / "a"), "the sidecar", seconds=LONGEST_S)
            kill(nodes["b"])
            (tmp_path / "fail").touch()
            until(lambda: standing(run) == "hang", "the verdict", seconds=LONGEST_S)
            until((run / "report.html").exists, "its page", seconds=LONGEST_S)
            verdict, rounds = verdict_of(run), record_of(run).rounds
        finally:
            for node in nodes.values():
                end(node)
    assert (verdict.culprits, verdict.cause) == ((), "rendezvous")
    assert "no rank has started again: torchrun (pid " in verdict.summary
    assert "for the other nodes of 2" in verdict.summary
    assert [one.number for one in rounds] == [0, 1]
    assert rounds[0].verdict == "crashed"
