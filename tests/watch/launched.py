"""Starting `hangcheck run` in tests and reading what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
from processes import ending

from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LONGEST_RUN_S = 480
"""Two ranks that import Lightning and transformers take 15 s alone, many more beside others."""

PATIENT_LOOKS = {"HANGCHECK_PROBE_TIMEOUT": "30"}
"""py-spy takes seconds where many other processes want the processor."""


def start_run(
    folder: Path,
    command: Sequence[str],
    *options: str,
    prefix: Sequence[str] = (),
    hangcheck: Path | None = None,
    **environment: str,
) -> subprocess.Popen[str]:
    """Start `hangcheck run` with pipes on its output; the run folder is FOLDER/run.

    ``prefix`` starts it in its turn, ``hangcheck`` is the Python to run it with.
    """
    return subprocess.Popen(
        [*prefix, *run_words(command, *options, hangcheck=hangcheck)],
        cwd=folder,
        env={**os.environ, **PATIENT_LOOKS, "CUDA_VISIBLE_DEVICES": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_words(command: Sequence[str], *options: str, hangcheck: Path | None = None) -> list[str]:
    """The words that start `hangcheck run` with a run folder below the working folder."""
    return [
        *(str(hangcheck or sys.executable), "-m", "lightning_hangcheck"),
        *("run", "--run-dir", "run", *options, "--"),
        *command,
    ]


def run(
    folder: Path, command: Sequence[str], *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `hangcheck run` to its end."""
    process = start_run(folder, command, *options, **environment)
    with ending(process):
        out, err = process.communicate(timeout=LONGEST_RUN_S)
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
