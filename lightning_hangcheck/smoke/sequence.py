"""Which runs a smoke test is made of, and how they are made: one after the other, with a limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.safe import NEW_FILE, PRIVATE_FILE
from lightning_hangcheck.launch.job import unstartable
from lightning_hangcheck.machine import end_with_children
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.saved_run import SavedRun, read_saved_run
from lightning_hangcheck.rundir import refuse_used
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lightning_hangcheck.rundir import RunFolder

Result = Literal["passed", "hang", "late", "failed"]
DEVICES, WORKERS = "{devices}", "{workers}"
SEQUENCE = ((2, 0), (2, 1), (1, 0))
"""Ranks and DataLoader workers: the least that has communication, then with workers, then alone."""
_PACKAGE = Path(__file__).parent.parent
PLACES = (_PACKAGE / "reference_script", _PACKAGE.parent / "scripts")
"""Of the reference script: in a wheel (pyproject.toml puts it there), and in a checkout."""
SCRIPT = "train_reference.py"
BATCHES = 5
"""Of training and of validation: all that a first run needs to show that ranks agree."""
FOUND = ("hang", "dead")
REFUSED = 2
"""Exit code of `hangcheck run` where the command cannot be started; the job may have it, too."""
END_LIMIT_S = 20.0
"""For `hangcheck run` to end the job: its own grace is 10 s."""


class Trial(Struct, frozen=True, kw_only=True):
    """One run of a smoke test.

    Attributes:
        devices: Ranks, None where the command does not let us choose.
        workers: DataLoader workers of each rank, likewise.
        command: To run.
    """

    devices: int | None
    workers: int | None
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people: ``2 ranks, 1 worker``, ``1 process``, ``as given``."""
        if self.devices == 1 and not self.workers:
            return "1 process"
        numbers = ((self.devices, "rank"), (self.workers, "worker"))
        named = [several(number, noun) for number, noun in numbers if number is not None]
        return ", ".join(named) or "as given"

    @property
    def slug(self) -> str:
        """The name as a part of a file's name."""
        return self.name.replace(",", "").replace(" ", "-")


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of one run.

    Attributes:
        result: ``hang``: a verdict says so; ``late``: it was ended at the limit, and nothing proves
            a hang; ``failed``: it ended by itself with an exit code that is not 0.
        seconds: Until it ended, or was ended.
        where: In one sentence; empty for a run that passed.
        verdict: What was known when it ended, or was about to be ended at the limit.
        run_folder: As a reader should type it.
    """

    trial: Trial
    result: Result
    seconds: float
    where: str = ""
    verdict: Verdict | None = None
    run_folder: str = ""

    @property
    def output_file(self) -> str:
        """What the run printed: beside its folder, which `hangcheck run` makes for itself."""
        return f"{self.run_folder}.log"


def plan_trials(command: Sequence[str]) -> tuple[Trial, ...]:
    """Put the numbers of the sequence in place of ``{devices}`` and ``{workers}``.

    Args:
        command: Of the user. What it lets nobody choose is left as it is, and runs that would be
            equal are made once.
    """
    words = " ".join(command)
    trials: dict[tuple[str, ...], Trial] = {}
    for devices, workers in SEQUENCE:
        numbers = {DEVICES: str(devices), WORKERS: str(workers)}
        filled = tuple(
            word.replace(DEVICES, numbers[DEVICES]).replace(WORKERS, numbers[WORKERS])
            for word in command
        )
        trial = Trial(
            devices=devices if DEVICES in words else None,
            workers=workers if WORKERS in words else None,
            command=filled,
        )
        trials.setdefault(filled, trial)
    return tuple(trials.values())


def reference_trials(output_dir: Path) -> tuple[Trial, ...]:
    """Plan the sequence with the reference script: by torchrun, and alone without a launcher.

    Raises:
        BadUsage: This installation has no reference script.
    """
    script = next((one / SCRIPT for one in PLACES if (one / SCRIPT).is_file()), None)
    if script is None:
        raise BadUsage(
            "this installation has no reference script",
            "name your own command: hangcheck smoke -- torchrun --nproc_per_node={devices} "
            "train.py --num_workers {workers}",
        )
    # --standalone: on a port of its own, so that another job of this machine is not met
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={DEVICES}")
    options = ("--fast_dev_run", str(BATCHES), "--batch_size", "4", "--num_workers", WORKERS)
    job = (str(script), *options, "--output_dir", str(output_dir))
    with_ranks = plan_trials((sys.executable, *torchrun, *job))[:2]
    alone = plan_trials((sys.executable, *job))[0]
    return (*with_ranks, Trial(devices=1, workers=0, command=alone.command))


def run_trial(
    trial: Trial,
    folder: RunFolder,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run one trial to its end, its hang or its limit; nothing of it is left behind.

    Args:
        trial: What to run.
        folder: For its run folder, which must not exist; its output goes into a file beside it.
        limit_s: Seconds; a trial that still goes on then is ended.
        environment: Of the run; None for that of this process.

    Raises:
        BadUsage: Its output has no place to go, or the kernel does not start the command.
        UsedRunFolder: The folder holds a run, whose verdict would be taken for this one's.
    """
    refuse_used(folder)
    output = folder.path.with_name(f"{folder.run_id}.log")
    command = (
        *(sys.executable, "-m", "lightning_hangcheck", "run", "--on-hang", "abort"),
        *("--run-dir", str(folder.path), "--", *trial.command),
    )
    began = time.monotonic()
    exit_code, saved = None, SavedRun()
    with _started(command, output, environment) as process:
        with suppress(subprocess.TimeoutExpired):
            exit_code = process.wait(limit_s)
        seconds = time.monotonic() - began
        # what ends it changes the verdict, so it is read before
        with suppress(UnreadableRun):
            saved = read_saved_run(folder)
    if exit_code == REFUSED and saved.record is not None and saved.record.exit_code is None:
        raise unstartable(trial.command[0], f"the reason is in {output}", "smoke")
    result: Result = "passed"  # a run that ended well, whatever was suspected on its way
    if exit_code != 0:
        hangs = saved.verdict is not None and saved.verdict.verdict in FOUND
        result = "hang" if hangs else "late" if exit_code is None else "failed"
    return Outcome(
        trial=trial,
        result=result,
        seconds=seconds,
        where="" if result == "passed" else _where(saved, exit_code, limit_s),
        verdict=saved.verdict,
        run_folder=str(folder.path),
    )


@contextmanager
def _started(
    command: tuple[str, ...], output_file: Path, environment: Mapping[str, str] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command that reads nothing and prints into a file; in the end none of it is left."""
    try:
        output_file.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(output_file, os.O_WRONLY | NEW_FILE, PRIVATE_FILE)
    except OSError as error:
        raise BadUsage(
            f"{output_file} cannot be made ({error.strerror})",
            "name other folders with --run-dir, where you may write and no run is yet",
        ) from error
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    finally:
        os.close(output)
    try:
        yield process
    finally:
        end_with_children(process, END_LIMIT_S)


def _where(saved: SavedRun, exit_code: int | None, limit_s: float) -> str:
    """Where it hangs, or all that is known of that."""
    ending = f"still ran after {limit_s:g} s" if exit_code is None else f"exit code {exit_code}"
    if saved.verdict is not None and saved.verdict.summary:
        said = saved.verdict.summary
        return said if saved.verdict.verdict in FOUND else f"{ending}: {said}"
    reached = [
        f"{end.name} passed checkpoint {end.checkpoint.number} {end.checkpoint.name}"
        for end in saved.journals
        if end.checkpoint is not None
    ]
    return f"{ending}: {', '.join(reached) or 'no rank said where it is'}"
