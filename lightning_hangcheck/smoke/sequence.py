"""Which runs a smoke test is made of, and how they are made: one after the other, with a limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
from msgspec import Struct

from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.atomic import NEW_FILE, PRIVATE_FILE
from lightning_hangcheck.launch.job import unstartable
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.saved_run import SavedRun, read_saved_run
from lightning_hangcheck.rundir.layout import refuse_used
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.rundir.layout import RunFolder

DEVICES, WORKERS = "{devices}", "{workers}"
SEQUENCE = ((2, 0), (2, 1), (1, 0))
"""Ranks and DataLoader workers: the least that has communication, then with workers, then alone."""


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
        ranks = [] if self.devices is None else [several(self.devices, "rank")]
        workers = [] if self.workers is None else [several(self.workers, "worker")]
        return ", ".join(ranks + workers) or "as given"

    @property
    def slug(self) -> str:
        """The name as a part of a file's name."""
        return self.name.replace(",", "").replace(" ", "-")


Result = Literal["passed", "hang", "late", "failed"]


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
        return output_name(self.run_folder)


def output_name(run_folder: str) -> str:
    """Name the file for what a run prints."""
    return f"{run_folder}.log"


def plan_trials(command: Sequence[str]) -> tuple[Trial, ...]:
    """Put the numbers of the sequence in place of ``{devices}`` and ``{workers}``.

    Args:
        command: Of the user. What it lets nobody choose is left as it is, and runs that would be
            equal are made once.
    """
    trials: dict[tuple[str, ...], Trial] = {}
    for devices, workers in SEQUENCE:
        trial = Trial(
            devices=devices if _names(command, DEVICES) else None,
            workers=workers if _names(command, WORKERS) else None,
            command=tuple(
                word.replace(DEVICES, str(devices)).replace(WORKERS, str(workers))
                for word in command
            ),
        )
        trials.setdefault(trial.command, trial)
    return tuple(trials.values())


def _names(command: Sequence[str], placeholder: str) -> bool:
    return any(placeholder in word for word in command)


_PACKAGE = Path(__file__).parent.parent
PLACES = (_PACKAGE / "reference_script", _PACKAGE.parent / "scripts")
"""In a wheel (pyproject.toml puts it there), and in a checkout."""
SCRIPT = "train_reference.py"
BATCHES = 5
"""Of training and of validation: all that a first run needs to show that ranks agree."""


def reference_trials(output_dir: Path) -> tuple[Trial, ...]:
    """Plan the sequence with the reference script: by torchrun, and alone without a launcher.

    Args:
        output_dir: Where it keeps its tokenizer and its logs.

    Raises:
        BadUsage: This installation has no reference script.
    """
    script = _find()
    return tuple(
        Trial(
            devices=devices,
            workers=workers,
            command=(
                *_launcher(devices),
                *(str(script), "--fast_dev_run", str(BATCHES), "--batch_size", "4"),
                *("--num_workers", str(workers), "--output_dir", str(output_dir)),
            ),
        )
        for devices, workers in SEQUENCE
    )


def _launcher(devices: int) -> tuple[str, ...]:
    if devices == 1:
        return (sys.executable,)
    # --standalone: on a port of its own, so that another job of this machine is not met
    ranks = f"--nproc_per_node={devices}"
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", ranks)


def _find() -> Path:
    for place in PLACES:
        if (place / SCRIPT).is_file():
            return place / SCRIPT
    raise BadUsage(
        "this installation has no reference script",
        "name your own command: hangcheck smoke -- torchrun --nproc_per_node={devices} train.py "
        "--num_workers {workers}",
    )


FOUND = ("hang", "dead")
REFUSED = 2
"""Exit code of `hangcheck run` where the command cannot be started; the job may have it, too."""
END_LIMIT_S = 20.0
"""For `hangcheck run` to end the job: its own grace is 10 s."""


def run_trial(trial: Trial, folder: RunFolder, limit_s: float) -> Outcome:
    """Run one trial to its end, its hang or its limit; nothing of it is left behind.

    Args:
        trial: What to run.
        folder: For its run folder, which must not exist; its output goes into a file beside it.
        limit_s: Seconds; a trial that still goes on then is ended.

    Raises:
        BadUsage: Its output has no place to go, or the kernel does not start the command.
        UsedRunFolder: The folder holds a run, whose verdict would be taken for this one's.
    """
    refuse_used(folder)
    command = (
        *(sys.executable, "-m", "lightning_hangcheck", "run", "--on-hang", "abort"),
        *("--run-dir", str(folder.path), "--", *trial.command),
    )
    started = time.monotonic()
    with _started(command, folder.path.with_name(output_name(folder.run_id))) as process:
        exit_code = _exit_code(process, limit_s)
        seconds = time.monotonic() - started
        # what ends it changes the verdict, so it is read before
        saved = _read(folder)
    if exit_code == REFUSED and saved.record is not None and saved.record.exit_code is None:
        output = folder.path.with_name(output_name(folder.run_id))
        raise unstartable(trial.command[0], f"the reason is in {output}", "smoke")
    result = _result(exit_code, saved)
    return Outcome(
        trial=trial,
        result=result,
        seconds=seconds,
        where="" if result == "passed" else _where(saved, exit_code, limit_s),
        verdict=saved.verdict,
        run_folder=str(folder.path),
    )


def _exit_code(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(limit_s)
    return None


@contextmanager
def _started(command: tuple[str, ...], output_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command that reads nothing and prints into a file; in the end none of it is left."""
    output = _open_output(output_file)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    finally:
        os.close(output)
    try:
        yield process
    finally:
        _end(process)


def _open_output(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | NEW_FILE, PRIVATE_FILE)
    except OSError as error:
        raise BadUsage(
            f"{path} cannot be made ({error.strerror})",
            "name other folders with --run-dir, where you may write and no run is yet",
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask `hangcheck run` to end its job; what outlives that is nobody's, and is killed."""
    if process.poll() is not None:
        return
    with suppress(psutil.NoSuchProcess):
        job = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_LIMIT_S)
        for one in job:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.kill()
    process.wait()


def _read(folder: RunFolder) -> SavedRun:
    """What the run left; nothing where it left nothing."""
    try:
        return read_saved_run(folder)
    except UnreadableRun:
        return SavedRun()


def _result(exit_code: int | None, saved: SavedRun) -> Result:
    """A run that ended well has passed, whatever was suspected on its way."""
    if exit_code == 0:
        return "passed"
    if saved.verdict is not None and saved.verdict.verdict in FOUND:
        return "hang"
    return "late" if exit_code is None else "failed"


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
