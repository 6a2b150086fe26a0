"""`hangcheck run --junit`: how a run ended, as JUnit XML."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.atomic import FOR_ALL, write_atomically
from lightning_hangcheck.reading.exit_codes import exit_code_in_words
from lightning_hangcheck.report.junit_xml import RunCase, Trouble, render
from lightning_hangcheck.report.saved_run import read_saved_run

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder

READ_LIMIT_S = 5.0
WRITE_LIMIT_S = 5.0
FOUND = ("hang", "dead")


def write_junit(
    file: str, command: str, folder: RunFolder | None, exit_code: int, seconds: float
) -> None:
    """Write it; what cannot be written is said, and changes no exit code.

    Args:
        file: Where to.
        command: As it may be shown.
        folder: Of the run; None where it was not watched.
        exit_code: Of `hangcheck run`.
        seconds: How long it took.
    """
    data = junit_of(command, folder, _verdict_in(folder), exit_code, seconds)
    path = Path(file).absolute()
    try:
        apart(WRITE_LIMIT_S, partial(write_atomically, path, data, FOR_ALL))
    except (OSError, NoAnswerFromStorage) as error:
        log.once("junit", f"--junit {path} was not written ({error})")


def junit_of(
    command: str,
    folder: RunFolder | None,
    verdict: Verdict | None,
    exit_code: int,
    seconds: float,
) -> bytes:
    """One test case: passed with exit code 0, a failure where a hang was found, else an error."""
    told = f"exit code {exit_code_in_words(exit_code)}"
    where = "" if folder is None else str(folder.path)
    trouble = None
    if exit_code != 0:
        found = verdict is not None and verdict.verdict in FOUND
        trouble = Trouble(
            kind="failure" if found else "error",
            type=(verdict.cause if verdict is not None else None) or f"exit code {exit_code}",
            message=(verdict.summary if verdict is not None else "") or told,
            lines=(told, *([f"hangcheck report {where}"] if where else [])),
        )
    case = RunCase(classname="hangcheck.run", name=command, seconds=seconds, trouble=trouble)
    return render("hangcheck run", [case], f"run folder: {where or 'none, it was not watched'}")


def _verdict_in(folder: RunFolder | None) -> Verdict | None:
    if folder is None:
        return None
    try:
        return read_saved_run(folder, READ_LIMIT_S).verdict
    except UnreadableRun:
        return None
