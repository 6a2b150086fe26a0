"""Runs one case of the corpus under `hangcheck run` and reads what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from processes import end

from lightning_hangcheck.model.verdict import Verdict

CASES = Path(__file__).parent / "cases"
PATIENCE = {
    "HANGCHECK_IDLE_AFTER": "8",
    "HANGCHECK_PROVEN_AFTER": "6",
    "HANGCHECK_STALL_TIMEOUT": "25",
    "HANGCHECK_ABORT_GRACE": "2",
}
"""Shorter than the defaults, so that the corpus takes minutes; the latency benchmark uses those."""


class Truth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is right about a case. Never read by the product.

    Attributes:
        function: Of the user's own code, as it must stand in the summary.
        processes: Ranks to start.
    """

    healthy: bool = False
    verdict: str = ""
    culprits: list[int] = []
    cause: str = ""
    phase: str | None = None
    function: str = ""
    processes: int = 2


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    exit_code: int
    output: str
    verdicts: list[Verdict]

    @property
    def told(self) -> list[str]:
        """Kinds of all verdicts in their order."""
        return [verdict.verdict for verdict in self.verdicts]


def cases() -> list[str]:
    """Names of all cases."""
    return sorted(path.stem for path in CASES.glob("*.toml"))


def truth_of(name: str) -> Truth:
    """Read the truth of a case."""
    return msgspec.toml.decode((CASES / f"{name}.toml").read_bytes(), type=Truth)


def run_case(name: str, folder: Path, time_limit_s: float) -> Outcome:
    """Run a case in a folder of its own; the whole process group is ended at the time limit."""
    run_dir = folder / "run"
    environment = {**os.environ, **PATIENCE, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    binaries = Path(sys.executable).parent
    command = [
        str(binaries / "hangcheck"),
        *("run", "--run-dir", str(run_dir), "--on-hang", "abort", "--"),
        *(str(binaries / "torchrun"), f"--nproc_per_node={truth_of(name).processes}"),
        str(CASES / f"{name}.py"),
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=30)
    finally:
        end(process)
    return Outcome(
        exit_code=process.returncode, output=output, verdicts=_verdicts(run_dir / "verdicts")
    )


def _verdicts(folder: Path) -> list[Verdict]:
    files = sorted(folder.glob("*.json"), key=lambda file: int(file.stem))
    return [msgspec.json.decode(file.read_bytes(), type=Verdict) for file in files]


def as_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a plain JSON object, for validation against the schema."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(verdict))
    return plain
