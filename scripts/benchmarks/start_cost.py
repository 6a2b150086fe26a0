"""What the instrumentation costs a process at its start: with and without, in turns."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figure, tell

from lightning_hangcheck.hooks.being_watched import injected
from lightning_hangcheck.session.session import SESSION_VARIABLE, SessionFacts, open_session

RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "HANGCHECK_CONSOLE": "off"}
PACKAGE = str(Path(__file__).resolve().parents[2])
CASES = {
    "start of a process that is no rank": ("pass", {}),
    "start of a rank that imports nothing": ("pass", RANK),
    "start of a rank that imports torch": ("import torch", RANK),
    "start of a rank that imports torch, transformers and Lightning": (
        "import torch, transformers, lightning.pytorch; transformers.PreTrainedModel",
        RANK,
    ),
}


def main() -> None:
    """Measure each case and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        facts = SessionFacts(
            run_dir=f"{folder}/run",
            command="benchmark",
            started_at="2026-01-01T00:00:00Z",
            root_pid=os.getpid(),
            launched=True,
        )
        session = open_session(Path(folder, "shared", "key"), facts)
        watched = {SESSION_VARIABLE: str(session.path), "PYTHONPATH": injected(PACKAGE)}
        figures = [
            _measure(name, code, {**watched, **extra}, options.repeats)
            for name, (code, extra) in CASES.items()
        ]
    tell(figures, as_json=options.json)


def _measure(name: str, code: str, watched: dict[str, str], repeats: int) -> Figure:
    pairs = [
        (_processor_ms(code, {"PYTHONPATH": PACKAGE}), _processor_ms(code, watched))
        for _ in range(repeats + 1)  # the first pair may compile files
    ][1:]
    without = statistics.median(first for first, _ in pairs)
    extra = statistics.median(second - first for first, second in pairs)
    note = (
        f"processor time: median of {repeats} differences between neighbours; "
        f"{without:.0f} ms without, machine load {os.getloadavg()[0]:.1f}"
    )
    target = "under 25 ms" if code == "pass" else "under 50 ms"
    return Figure(name, extra, "ms", target, note)


def _processor_ms(code: str, environment: dict[str, str]) -> float:
    # without compiled files a checkout would be compiled at each start; an installed one is not
    ours = ("HANGCHECK_", "RANK", "LOCAL_", "WORLD_SIZE", "SLURM_", "PYTHONDONTWRITEBYTECODE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    process = subprocess.Popen(command, env={**clean, **environment})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"{code!r} failed")
    return (used.ru_utime + used.ru_stime) * 1000


if __name__ == "__main__":
    main()
