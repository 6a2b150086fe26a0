#!/usr/bin/env python
"""The reference training under `hangcheck run` for a long time, healthy but with uneven pauses.

Both ranks pause at random before their steps, 0.05 to 20 s, mostly short, the same in every run.
No such pause is a hang: exit code 1 if a `hang`, `dead` or `crashed` was called.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from figures import Figure, tell

from lightning_hangcheck.files import decode
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rundir import RunFolder

SCRIPT = Path(__file__).parent.parent / "train_reference.py"
RANKS = 2
START_LIMIT_S = 180.0
SETTLING_S = 10.0
SAMPLE_S = 1.0
END_LIMIT_S = 60.0
FALSE = ("hang", "dead", "crashed")


@dataclass(frozen=True)
class Reading:
    """The sidecar at one moment."""

    at: float
    cpu_s: float
    rss_mb: float
    descriptors: int


def main() -> int:
    """Train, look at the sidecar meanwhile, end the training, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the run there, a new folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        readings = _soak(folder, options.minutes * 60)
        told = Counter(_told(RunFolder(folder / "run")))
        figures = [*_of_verdicts(told), *_of_sidecar(readings), *_of_folder(folder)]
    tell(figures, as_json=options.json)
    return 1 if any(told[kind] for kind in FALSE) else 0


def _soak(folder: Path, seconds: float) -> list[Reading]:
    command = [sys.executable, "-m", "lightning_hangcheck", "run", "--run-dir", str(folder / "run")]
    command += ["--", sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}"]
    command += ["--standalone", str(SCRIPT), "--batch_size", "4", "--max_steps", "1000000000"]
    for rank in range(RANKS):
        command += ["--inject", f"uneven_pauses@{rank}"]
    environment = {**os.environ, "HANGCHECK_FAULT_MARK": str(folder / "pauses")}
    with (folder / "log").open("wb") as log:
        job = psutil.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            return _watch(job, folder, seconds)
        finally:
            job.terminate()
            job.wait(END_LIMIT_S)


def _watch(job: psutil.Popen, folder: Path, seconds: float) -> list[Reading]:
    sidecar = _wait_for_sidecar(job, folder)
    time.sleep(SETTLING_S)  # what is measured is the watching, not the start
    readings = [_read(sidecar)]
    while time.monotonic() < readings[0].at + seconds:
        time.sleep(SAMPLE_S)
        if job.poll() is not None:
            raise SystemExit(f"soak: the training ended by itself:\n{_end_of_log(folder)}")
        readings.append(_read(sidecar))
    return readings


def _wait_for_sidecar(job: psutil.Popen, folder: Path) -> psutil.Process:
    """Return the sidecar once both ranks train: they paused already."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and job.poll() is None:
        if (folder / "pauses").exists():
            for process in job.children():
                if "lightning_hangcheck.watch.sidecar" in process.cmdline():
                    return process
        time.sleep(0.5)
    raise SystemExit(f"soak: the training did not start:\n{_end_of_log(folder)}")


def _read(sidecar: psutil.Process) -> Reading:
    with sidecar.oneshot():
        used = sidecar.cpu_times()
        own = used.user + used.system
        return Reading(
            at=time.monotonic(),
            cpu_s=own + used.children_user + used.children_system,
            rss_mb=sidecar.memory_info().rss / 1e6,
            descriptors=sidecar.num_fds(),
        )


def _told(folder: RunFolder) -> list[str]:
    files = [folder.numbered_verdict(number) for number in folder.verdict_numbers()]
    return [decode(file.read_bytes(), Verdict, str(file)).verdict for file in files]


def _of_verdicts(told: Counter[str]) -> list[Figure]:
    others = ", ".join(f"{count} {kind}" for kind, count in told.items() if kind not in FALSE)
    false = sum(told[kind] for kind in FALSE)
    return [
        Figure("`hang`, `dead` and `crashed` verdicts", false, "", "0", f"besides: {others}"),
        Figure("`suspect` lines", told["suspect"], "", "few"),
    ]


def _of_sidecar(readings: list[Reading]) -> list[Figure]:
    first, last = readings[0], readings[-1]
    minutes = (last.at - first.at) / 60
    share = 100 * (last.cpu_s - first.cpu_s) / (last.at - first.at)
    note = f"{minutes:.0f} min, {RANKS} ranks, load {os.getloadavg()[0]:.1f}"
    memory = [one.rss_mb for one in readings]
    return [
        Figure("sidecar and its py-spy, CPU of one core", share, "%", "under 1 %", note),
        Figure(
            "sidecar, resident memory at the end",
            last.rss_mb,
            "MB",
            "under 60 MB",
            f"{first.rss_mb:.1f} MB at the start, {median(memory):.1f} median, "
            f"{max(memory):.1f} at most",
        ),
        Figure(
            "sidecar, open files at the end",
            last.descriptors,
            "",
            "",
            f"{first.descriptors} at the start, {max(one.descriptors for one in readings)} at most",
        ),
    ]


def _of_folder(folder: Path) -> list[Figure]:
    journals = sum(file.stat().st_size for file in (folder / "run" / "ranks").glob("*.jsonl"))
    everything = sum(file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file())
    pauses = len((folder / "pauses").read_text().splitlines())
    return [
        Figure("pauses of 2 s or more", pauses, "", "", "of 0.05 to 20 s, both ranks"),
        Figure("journals", journals / 1e3, "kB", "", f"run folder {everything / 1e3:.0f} kB"),
    ]


def _end_of_log(folder: Path) -> str:
    return "\n".join((folder / "log").read_text(errors="replace").splitlines()[-15:])


if __name__ == "__main__":
    sys.exit(main())
