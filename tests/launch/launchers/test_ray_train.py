"""Two ranks under a real Ray Train on one machine: how they end, which one stalls, and attach.

It takes minutes, most of which Ray needs to start: RUN_LONG_TESTS=1 runs it where Ray is installed
(``pip install 'ray[train]==2.60.0'``).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from long_tests import LONG_TEST
from processes import MARK, PROGRAMS, end, end_by_pid, marked_processes, runs, until
from watch.launched import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import psutil

LONGEST_S = 240.0
pytestmark = [
    *LONG_TEST,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]
LOOPS = pytest.mark.parametrize("loop", ["lightning", "plain"])


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a driver; all that Ray has started ends with the test."""
    before = {one.pid for one in marked_processes(os.environ[MARK])}
    short = tempfile.mkdtemp(prefix="ray-")  # Ray's sockets lie below it
    drivers = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        loop, ending, *unaware = words
        driver = subprocess.Popen(
            [sys.executable, PROGRAMS / "ray_training.py", loop, ending, tmp_path, *unaware],
            env={
                **os.environ,
                "HANGCHECK_RUN_DIR": str(tmp_path / "run"),
                "RAY_TMPDIR": short,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_worker_niceness": "0",
                "OMP_NUM_THREADS": "1",
            },
            cwd=tmp_path,
        )
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        end(driver)
    end_by_pid([one for one in marked_processes(os.environ[MARK]) if one.pid not in before])
    shutil.rmtree(short, ignore_errors=True)


def newest(folder: Path) -> str:
    file = folder / "run" / "verdict.json"
    return verdict_of(folder / "run").verdict if file.exists() else ""


@LOOPS
def test_a_rank_that_stalls_is_named_with_its_line_and_the_end_of_the_job_after_it(
    loop: str, driver: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    job = driver(loop, "stalls")
    until(lambda: newest(tmp_path) == "hang", "the hang", seconds=LONGEST_S)
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.culprits, verdict.victims, verdict.cause) == ((1,), (0,), "rank_stalled")
    assert "rank 1 is stuck in stand_still" in verdict.summary
    job.send_signal(signal.SIGINT)
    job.wait(LONGEST_S)
    until(
        lambda: "later the job was ended by whom" in verdict_of(tmp_path / "run").summary,
        "what became of the job",
        seconds=LONGEST_S,
    )


def test_attach_finds_the_ranks_of_a_job_that_never_heard_of_us(
    driver: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    driver("plain", "stalls", "unaware")
    command = [sys.executable, "-m", "lightning_hangcheck", "attach", "--run-dir"]

    def attached() -> str:
        actors = [one for one in marked_processes(os.environ[MARK]) if _trains(one)]
        if not actors:
            return ""
        shutil.rmtree(tmp_path / "looked", ignore_errors=True)
        asked = subprocess.run(
            [*command, tmp_path / "looked", "--pid", str(actors[0].pid)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )
        return asked.stdout if asked.returncode == 3 else ""

    said = until(attached, "a hang that attach sees", seconds=LONGEST_S)
    assert "rank 1 is stuck in stand_still" in said


def _trains(process: psutil.Process) -> bool:
    return runs(process, "ray::RayTrainWorker")
