"""Makes the runs of a smoke test, one after the other, each under `hangcheck run` with a limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.atomic import NEW_FILE, PRIVATE_FILE
from lightning_hangcheck.launch.job import unstartable
from lightning_hangcheck.report.saved_run import SavedRun, read_saved_run
from lightning_hangcheck.rundir.layout import refuse_used
from lightning_hangcheck.smoke.trial import Outcome, output_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.rundir.layout import RunFolder
    from lightning_hangcheck.smoke.trial import Result, Trial

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
