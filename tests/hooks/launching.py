"""Starting the jobs that the tests of this room look at, and reading what their ranks say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from processes import PROGRAMS, end

from lightning_hangcheck.session.session import SessionFacts, open_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lightning_hangcheck.session.session import Session

LIMIT_S = 480.0
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
OFFLINE = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "OMP_NUM_THREADS": "1",
}
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2")


def python(
    *words: str,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    limit_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words and this environment until it ends."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def job_session(tmp_path: Path, *, launched: bool = True, root_pid: int = 0) -> Session:
    """Open the session of a job; of a launched one, no rank takes it away while others come."""
    facts = SessionFacts(
        run_dir=str(tmp_path / "run"),
        command="train.py",
        started_at="2026-11-20T10:00:00Z",
        root_pid=root_pid or os.getpid(),
        launched=launched,
    )
    return open_session(tmp_path / "session", facts)


class Ended(NamedTuple):
    """A job that has ended.

    Attributes:
        said: What its ranks printed as JSON, in the order of printing.
    """

    code: int
    said: list[dict[str, Any]]
    errors: str

    def of(self, event: str) -> dict[int, Any]:
        """What each rank said of an event; a rank that said it twice is a bug of the test."""
        found = [line for line in self.said if line.get("event") == event]
        by_rank = {line["rank"]: line for line in found}
        assert len(by_rank) == len(found), found
        return by_rank


def run_job(
    folder: Path,
    *words: str,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] = OFFLINE,
) -> Ended:
    """Run a program of tests/programs in a folder of its own until it ends."""
    process = start_job(folder, *words, launcher=launcher, environment=environment)
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    finally:
        end(process)
    return Ended(process.returncode, list(json_lines(output)), errors)


def start_job(
    folder: Path,
    *words: str,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] = OFFLINE,
) -> subprocess.Popen[str]:
    """Start it, without what an outer launcher may have left in our environment."""
    clean = {key: value for key, value in os.environ.items() if key not in LAUNCHER_VARIABLES}
    return subprocess.Popen(
        [sys.executable, *launcher, str(PROGRAMS / words[0]), *words[1:]],
        cwd=folder,
        env={**clean, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def json_lines(output: str) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects, among whatever else a job prints."""
    for line in output.splitlines():
        if line.startswith("{"):
            yield json.loads(line)
