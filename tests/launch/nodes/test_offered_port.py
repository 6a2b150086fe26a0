"""Two nodes without a launcher's store: the first one's sidecar serves one, and one verdict comes.

As under Lightning's own SLURM environment, the ranks' store is inside rank 0. Here both nodes are
this machine, and meet on loopback.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, end, free_port, until
from watch.launched import record_of, start_run, verdict_of

from lightning_hangcheck.cli.main import invoke

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SECRET = "f2b1c0d94e7a8b63"  # noqa: S105 - of this test alone


def _start(folder: Path, number: int, ports: tuple[int, int], secret: str) -> subprocess.Popen[str]:
    """One node with one rank; rank 1 stands still after a few steps."""
    folder.mkdir()
    return start_run(
        folder,
        [sys.executable, str(PROGRAMS / "nodes_training.py"), "20", "1"],
        *("--stall-timeout", "8", "--nodes-port", str(ports[1]), "--quiet"),
        RANK=str(number),
        LOCAL_RANK="0",
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="1",
        NODE_RANK=str(number),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(ports[0]),
        OMP_NUM_THREADS="1",
        HANGCHECK_NODES_TOKEN=secret,
    )


def _said(run: Path) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    with suppress(OSError, msgspec.MsgspecError):
        newest = verdict_of(run)
        return newest.verdict, newest.culprits, tuple(one.rank for one in newest.ranks)
    return "", (), ()


def _listening_at(port: int, *nodes: subprocess.Popen[str]) -> set[str]:
    """Addresses at which a process of these nodes listens on a port."""
    everyone = [one for node in nodes for one in psutil.Process(node.pid).children(recursive=True)]
    found = set()
    for process in everyone:
        with suppress(psutil.Error):
            found |= {
                one.laddr.ip
                for one in process.net_connections("tcp")
                if one.status == psutil.CONN_LISTEN and one.laddr.port == port
            }
    return found


@WHEN_ASKED_FOR
@pytest.mark.real
def test_both_nodes_tell_the_rank_of_the_second_by_way_of_the_offered_store(
    tmp_path: Path,
) -> None:
    ports = free_port(), free_port()
    folders = [tmp_path / f"node{number}" for number in (0, 1)]
    runs = [folders[0] / "run", folders[1] / "run" / "node-1"]
    nodes = [_start(folder, number, ports, SECRET) for number, folder in enumerate(folders)]
    try:
        for run in runs:
            until(
                lambda run=run: _said(run) == ("hang", (1,), (0, 1)),
                f"{run} to say which rank",
            )
        assert _listening_at(ports[1], *nodes) == {"127.0.0.1"}
    finally:
        for node in nodes:
            end(node)
    assert "stand_still" in verdict_of(runs[1]).summary
    said = f"the first sidecar's store at 127.0.0.1:{ports[1]}: no store that outlives the ranks"
    assert record_of(runs[0]).meeting.startswith(said)
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file


def test_a_port_without_a_secret_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANGCHECK_NODES_TOKEN", raising=False)
    assert invoke(["run", "--nodes-port", "29511", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs a secret of 16 characters or more, the same on all nodes; export" in said


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--nodes-port", port, "--", "true"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
