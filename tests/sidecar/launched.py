"""Starting `hangcheck run` in tests and reading what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from processes import end

from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

BINARIES = Path(sys.executable).parent


def start_run(
    folder: Path, command: Sequence[str], *options: str, run_dir: str = "run", **environment: str
) -> subprocess.Popen[str]:
    """Start `hangcheck run` with pipes on its output; the run folder is FOLDER/RUN_DIR."""
    return subprocess.Popen(
        [
            str(BINARIES / "hangcheck"),
            *("run", "--run-dir", run_dir, *options, "--"),
            *command,
        ],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    folder: Path, command: Sequence[str], *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `hangcheck run` to its end, at most a minute."""
    process = start_run(folder, command, *options, **environment)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        end(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def python(code: str) -> list[str]:
    """A command that runs this code."""
    return [sys.executable, "-c", code]


def verdict_of(run_folder: Path) -> Verdict:
    """Read the newest verdict."""
    return msgspec.json.decode((run_folder / "verdict.json").read_bytes(), type=Verdict)


def record_of(run_folder: Path) -> RunRecord:
    """Read run.json."""
    return msgspec.json.decode((run_folder / "run.json").read_bytes(), type=RunRecord)
