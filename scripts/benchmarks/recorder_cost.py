#!/usr/bin/env python
"""What recording costs a rank: each call, the import, and another tool's heartbeat beside it."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figure, describe_machine, tell

CALLS_PROGRAM = Path(__file__).parent / "programs" / "recorder_calls.py"
HEARTBEAT_PROGRAM = Path(__file__).parent / "programs" / "heartbeat_of_nvrx.py"
LIMIT_S = 120
TARGETS = {
    "beat()": "under 0.2 µs",
    "checkpoint(), journal and console to files": "under 10 µs",
    "enter_phase(), what a callback's hook calls": "under 1 µs",
}
HEAVY = ("torch", "lightning", "pytorch_lightning", "wandb", "transformers", "rich", "psutil")
IMPORT_CODE = f"""
import sys, time
began = time.perf_counter()
import lightning_hangcheck
spent = time.perf_counter() - began
heavy = sorted({{name.partition(".")[0] for name in sys.modules}} & set({HEAVY!r}))
print(spent * 1e3, ",".join(heavy))
"""


def main() -> None:
    """Measure, each figure the median of several repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="repeats of each figure (15)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    figures = [
        *_measure_calls(options.repeats),
        _measure_import(options.repeats),
        _measure_other_heartbeat(),
    ]
    if not options.json:
        print(f"{describe_machine()}\n")
    tell(figures, as_json=options.json)


def _measure_calls(repeats: int) -> list[Figure]:
    """Time the calls in a process of their own, a rank whose stderr is a file."""
    with tempfile.TemporaryDirectory() as folder:
        environment = _as_rank() | {"HANGCHECK_RUN_DIR": f"{folder}/run"}
        command = [sys.executable, str(CALLS_PROGRAM), str(repeats)]
        with Path(folder, "console.txt").open("wb") as console:
            output = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=console,
                check=True,
                timeout=LIMIT_S,
            ).stdout
    note = f"median of {repeats} loops, machine load {os.getloadavg()[0]:.1f}"
    return [
        Figure(name, microseconds, "µs", TARGETS.get(name, ""), note)
        for name, microseconds in json.loads(output).items()
    ]


def _measure_import(repeats: int) -> Figure:
    command = [sys.executable, "-c", IMPORT_CODE]
    outputs = [
        subprocess.check_output(command, text=True, timeout=LIMIT_S).split()
        for _ in range(repeats + 1)
    ][1:]  # the first one may have compiled the files
    heavy = {name for output in outputs for name in output[1:]}
    note = f"it imports {', '.join(heavy)}" if heavy else f"imports none of {', '.join(HEAVY)}"
    milliseconds = statistics.median(float(output[0]) for output in outputs)
    return Figure("import lightning_hangcheck", milliseconds, "ms", "under 35 ms", note)


def _measure_other_heartbeat() -> Figure:
    """Its client speaks to a monitor process that only its launcher starts."""
    name = "nvidia-resiliency-ext, send_heartbeat()"
    launcher = Path(sys.executable).with_name("ft_launcher")
    if not launcher.exists():
        return Figure(name, None, "µs", note="not measured: nvidia-resiliency-ext is not installed")
    command = [str(launcher), "--nproc_per_node=1", "--rdzv_backend=c10d"]
    command += ["--rdzv_endpoint=localhost:0", "--ft-rank-heartbeat-timeout=60"]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "microseconds")
        log = Path(folder, "log")
        reason = _run_launcher([*command, str(HEARTBEAT_PROGRAM), str(result)], log)
        if result.exists():
            note = "one process under ft_launcher, CPU"
            return Figure(name, float(result.read_text()), "µs", note=note)
    return Figure(name, None, "µs", note=f"not measured: {reason}")


def _run_launcher(command: list[str], log: Path) -> str:
    """Run it; return the last line that it said."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=_without_launcher())
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            return f"it did not end within {LIMIT_S} s"
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else f"it ended with {process.returncode}, saying nothing"


def _without_launcher() -> dict[str, str]:
    ours = ("HANGCHECK_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "SLURM_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _as_rank() -> dict[str, str]:
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": str(os.getpid())}
    return _without_launcher() | rank


if __name__ == "__main__":
    main()
