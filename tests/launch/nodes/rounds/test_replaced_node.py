"""The first node of an elastic torchrun dies and another takes its place: three rounds, one run.

It takes a minute or two, most of which torchrun waits for nodes: RUN_LONG_TESTS=1 runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from long_tests import LONG_TEST
from processes import PROGRAMS, end, until
from watch.launched import record_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES_HOSTS = os.geteuid() == 0 and shutil.which("unshare") is not None
pytestmark = [
    *LONG_TEST,
    pytest.mark.skipif(not NAMES_HOSTS, reason="hosts of their own names need root and unshare"),
]
LONGEST_S = 280.0
STORE = (
    "import sys, torch.distributed as dist;"
    "store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False);"
    "print(store.port, flush=True); sys.stdin.read()"
)


@contextmanager
def endpoint() -> Iterator[str]:
    """The store of the rendezvous, on a host that lives."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    serving = subprocess.Popen([sys.executable, "-c", STORE], **pipes, text=True)
    try:
        assert serving.stdout is not None
        yield f"127.0.0.1:{int(serving.stdout.readline())}"
    finally:
        end(serving)


def start(folder: Path, host: str, address: str, store: str) -> subprocess.Popen[bytes]:
    """Start one node; torchrun numbers them by their addresses."""
    words = [
        *(sys.executable, "-m", "lightning_hangcheck", "run", "--run-dir", f"{folder}/run"),
        *("--stall-timeout", "20", "--", sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"),
        *("--rdzv-id=replaced", f"--rdzv-endpoint={store}", f"--local-addr={address}"),
        "--rdzv-conf=is_host=0,last_call_timeout=20,read_timeout=240",
        *(str(PROGRAMS / "replaced_training.py"), str(folder)),
    ]
    named = ["unshare", "-u", "sh", "-c", f'hostname {host}; exec "$@"', "sh", *words]
    with (folder / f"said-{host}").open("wb") as said:
        return subprocess.Popen(
            named,
            cwd=folder,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
            stdout=said,
            stderr=said,
        )


def kill(node: subprocess.Popen[bytes]) -> None:
    """End a node with all that runs there at once, as a power cut would."""
    if node.poll() is not None:
        return
    launcher = psutil.Process(node.pid)
    for one in (launcher, *launcher.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    node.wait(120)


def test_a_first_node_that_came_last_judges_the_ranks_of_its_round(tmp_path: Path) -> None:
    shared, nodes = tmp_path / "run", []

    def there(*names: str) -> None:
        for name in names:
            until((tmp_path / name).exists, name, seconds=LONGEST_S)

    def hangs(folder: Path) -> bool:
        try:
            return verdict_of(folder).verdict == "hang"
        except (OSError, msgspec.MsgspecError):
            return False

    with endpoint() as store:
        try:
            nodes += [start(tmp_path, "b", "127.0.0.3", store)]
            until((shared / "run.json").exists, "the first to come", seconds=LONGEST_S)
            nodes += [start(tmp_path, "a", "127.0.0.2", store)]
            there("a-0-2", "b-1-2")
            kill(nodes[1])
            there("b-0-1")
            (tmp_path / "b-1-2").unlink()
            nodes += [start(tmp_path, "c", "127.0.0.1", store)]
            there("c-0-2", "b-1-2")
            said = [(tmp_path / f"said-{host}").read_text() for host in "abc"]
            (tmp_path / "hang-1").touch()
            folders = [shared, shared / "node-c"]
            for folder in folders:
                until(lambda folder=folder: hangs(folder), "both nodes' verdict", seconds=LONGEST_S)
            verdicts = [verdict_of(folder) for folder in folders]
            rounds = [record_of(folder).rounds for folder in folders]
            told = report(shared)
        finally:
            for node in nodes:
                kill(node)
    assert not any("SUSPECT" in one or "HANG" in one for one in said), "while nodes came and went"
    for verdict in verdicts:
        assert (verdict.culprits, verdict.victims) == ((1,), (0,))
        assert [(one.rank, one.host) for one in verdict.ranks] == [(0, "c"), (1, "b")]
    assert [[one.number for one in each] for each in rounds] == [[0, 1, 2], [2]]
    assert "rank 0 ran on a (round 0), b (round 1), c (round 2)" in told


def report(run: Path) -> str:
    words = [sys.executable, "-m", "lightning_hangcheck", "report", str(run)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
