"""The one door to py-spy: find it, run it within a time limit, and hear what it complains of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lightning_hangcheck.isolation.command import interpreter
from lightning_hangcheck.isolation.environment import own_environment, searched_folders
from lightning_hangcheck.probes.bounded_child import ChildLate, answer_of

# Rust programs print a backtrace below each error where the user asked for one.
QUIET = {"RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"}
SHORT_VALUES, LONG_VALUES = "-l", "-lllll"
"""Options for local variables, cut at `SHORT_VALUE` doubled by each further l (0.4.3)."""
SHORT_VALUE = 128  # characters


class PySpyFailed(Exception):
    """py-spy gave no stacks; the message is its own complaint in one line."""


class PySpyLate(Exception):
    """py-spy gave no answer in time and was killed."""


def find_py_spy() -> Path | None:
    """Find the program beside this Python, where pip puts it, or on PATH."""
    beside = Path(interpreter()).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("py-spy", path=searched_folders("PATH"))
    return Path(on_path) if on_path else None


def dump(
    program: Path,
    pid: int,
    time_limit_s: float,
    *,
    values: str | None = None,
    native: bool = False,
) -> bytes:
    """Run ``py-spy dump --json``, which pauses the process only for native calls.

    A py-spy that is killed leaves its target running: it attaches with PTRACE_SEIZE, which the
    kernel undoes when the tracer ends (153 kills at random moments, 0.4.3: never stopped).

    Args:
        program: As `find_py_spy` found it.
        pid: The process to read.
        time_limit_s: Seconds until it is killed.
        values: Local variables of every frame too, as text: `SHORT_VALUES` or `LONG_VALUES`.
        native: Calls of native code too: every thread of the process stands still meanwhile.

    Returns:
        Its JSON.

    Raises:
        PySpyFailed: It could not be started or reported an error.
        PySpyLate: It took longer.
    """
    command = [str(program), "dump", "--json", "--pid", str(pid)]
    command += ["--native"] if native else ["--nonblocking"]
    command += [values] if values is not None else []
    try:
        answer = answer_of(command, time_limit_s, {**own_environment(), **QUIET})
    except OSError as error:
        raise PySpyFailed(f"{program} cannot be started ({error.strerror})") from error
    except ChildLate as error:
        raise PySpyLate(f"py-spy gave {error}") from error
    if answer.returncode != 0:
        raise PySpyFailed(_in_one_line(answer.stderr) or f"it ended with {answer.returncode}")
    return answer.stdout


def _in_one_line(complaint: bytes) -> str:
    """Join the first line and the innermost cause, which py-spy lists below ``Caused by:``."""
    lines = [line.strip() for line in complaint.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return ""
    headline = lines[0].removeprefix("Error: ")
    if len(lines) == 1 or lines[-1] in headline:
        return headline
    return f"{headline} ({lines[-1].partition(': ')[2] or lines[-1]})"
