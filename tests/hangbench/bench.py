"""Runs one case of the corpus under `hangcheck run` and reads what came of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from processes import GRACE_S, MARK, end_by_pid, marked_processes

from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

CASES = Path(__file__).parent / "cases"
PATIENCE = {
    "HANGCHECK_IDLE_AFTER": "8",
    "HANGCHECK_BUSY_FLOOR": "25",
    "HANGCHECK_STALL_TIMEOUT": "25",
    "HANGCHECK_ABORT_GRACE": "2",
}
"""Shorter than the defaults, so that the corpus takes minutes; the latency benchmark uses those."""

NO_END = "did not end"
ON_GPU = "HANGBENCH_GPU"
"""Set where the ``queued_*`` cases run on a GPU with NCCL."""


class Truth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is right about a case, by the contract's definitions. Never read by the product.

    Attributes:
        verdict: Kinds that are right; as all lists here, several only with a reason.
        or_culprits: Other right answers.
        function: Of the user's own code, one of which is the place that the summary names.
        because: Why more than one answer is right.
        processes: Ranks to start.
        launcher: ``python`` for a script that starts its ranks itself, or has one.
        needs: Modules without which the case cannot run.
        says: What a healthy program prints at its end, each somewhere in its output.
        gpu: Whether it needs an NVIDIA GPU, and runs with `scripts/hangbench --gpu` alone.
        unhurried: Silent for longer than the shortened limits: it runs with those that users have.
        tier: ``ci`` for a few fast ones, one for each mechanism.
        mechanism: Which of them it stands for there.
    """

    healthy: bool = False
    verdict: str | list[str] = []
    culprits: list[int] = []
    or_culprits: list[list[int]] = []
    cause: str | list[str] = []
    phase: str | list[str] | None = None
    function: str | list[str] = []
    because: str = ""
    processes: int = 2
    launcher: Literal["torchrun", "python"] = "torchrun"
    needs: list[str] = []
    says: list[str] = []
    gpu: bool = False
    unhurried: bool = False
    tier: Literal["ci", "full"] = "full"
    mechanism: str = ""

    @property
    def all_culprits(self) -> list[list[int]]:
        """Every right answer to who."""
        return [self.culprits, *self.or_culprits]


def any_of(answer: str | list[str]) -> list[str]:
    """The right answers, of which there is mostly one."""
    return [answer] if isinstance(answer, str) else answer


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to.

    Attributes:
        exit_code: None where it had to be ended at the time limit.
        onset_s: Clock time, seconds since 1970, at which the program noted that it goes wrong.
        written_s: When each verdict's file was written, by the same clock.
        watched_s: How long it ran.
        source: Of the script.
    """

    exit_code: int | None
    output: str
    verdicts: list[Verdict]
    onset_s: float | None = None
    written_s: list[float] = []
    watched_s: float = 0.0
    source: str = ""

    @property
    def told(self) -> list[str]:
        """Kinds of all verdicts in their order, and whether the run had to be ended."""
        ended = [] if self.exit_code is not None else [NO_END]
        return [*(verdict.verdict for verdict in self.verdicts), *ended]


def cases() -> list[str]:
    """Names of all cases."""
    return sorted(path.stem for path in CASES.glob("*.toml"))


def truth_of(name: str) -> Truth:
    """Read the truth of a case."""
    return msgspec.toml.decode((CASES / f"{name}.toml").read_bytes(), type=Truth)


def run_case(
    name: str, folder: Path, time_limit_s: float, patience: Mapping[str, str] = PATIENCE
) -> Outcome:
    """Run a case of the corpus in a folder of its own."""
    truth = truth_of(name)
    limits = {} if truth.unhurried else patience
    return run_script(CASES / f"{name}.py", truth, folder, time_limit_s, limits)


def run_script(
    script: Path, truth: Truth, folder: Path, time_limit_s: float, patience: Mapping[str, str]
) -> Outcome:
    """Run a script in a folder of its own, and end whatever outlives it or the time limit.

    What it prints goes to a file: a rank that outlived its launcher would keep a pipe open.
    """
    begun_s, mark = time.time(), f"{os.environ.get(MARK, 'hangbench')}-{folder}"
    with (folder / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            _command(script, truth, folder / "run"),
            cwd=folder,
            env={**environment_of(folder), **patience, MARK: mark},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(time_limit_s)
            exit_code = process.poll()
            verdicts = _verdicts(folder / "run")  # before what we end is told, too
            watched_s = time.time() - begun_s
        finally:
            end_by_pid(marked_processes(mark))
            process.wait(GRACE_S)
        output.seek(0)
        return Outcome(
            exit_code=exit_code,
            output=output.read(),
            verdicts=[verdict for verdict, _ in verdicts],
            written_s=[written_s for _, written_s in verdicts],
            onset_s=clock_time(folder / "onset"),
            watched_s=watched_s,
            source=script.read_text(encoding="utf-8"),
        )


def _verdicts(run_dir: Path) -> list[tuple[Verdict, float]]:
    """All that was told, and when each was written."""
    files = sorted((run_dir / "verdicts").glob("*.json"), key=lambda file: int(file.stem))
    return [
        (msgspec.json.decode(file.read_bytes(), type=Verdict), file.stat().st_mtime)
        for file in files
    ]


def environment_of(folder: Path) -> dict[str, str]:
    """What every run of a case finds in its environment, whoever watches it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "0" if ON_GPU in os.environ else "",
        "OMP_NUM_THREADS": "1",
        "PET_MASTER_PORT": port,  # of torchrun; older ones all take the same
        "HANGBENCH_ONSET": str(folder / "onset"),
    }


def _command(script: Path, truth: Truth, run_dir: Path) -> list[str]:
    binaries = Path(sys.executable).parent
    launchers = {
        "torchrun": [str(binaries / "torchrun"), f"--nproc_per_node={truth.processes}"],
        "python": [sys.executable],
    }
    return [
        str(binaries / "hangcheck"),
        *("run", "--run-dir", str(run_dir), "--on-hang", "abort", "--"),
        *launchers[truth.launcher],
        str(script),
    ]


def clock_time(note: Path) -> float | None:
    """The monotonic time in a note as clock time; None where the program wrote none (yet)."""
    text = note.read_text(encoding="ascii") if note.exists() else ""
    return time.time() - time.monotonic() + int(text) / 1e9 if text else None


def as_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a plain JSON object, for validation against the schema."""
    plain: dict[str, Any] = json.loads(msgspec.json.encode(verdict))
    return plain
