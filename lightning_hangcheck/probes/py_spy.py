"""The one door to py-spy: find it, run it within a time limit, and hear what it complains of."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

# Rust programs print a backtrace below each error where the user asked for one.
QUIET = {"RUST_BACKTRACE": "0", "RUST_LIB_BACKTRACE": "0"}
LAST_GRACE_S = 1.0
LONG_VALUES = "-lllll"  # local variables, cut at 128 characters doubled by each further l (0.4.3)


class PySpyFailed(Exception):
    """py-spy gave no stacks; the message is its own complaint in one line."""


class PySpyLate(Exception):
    """py-spy gave no answer in time and was killed."""


def find_py_spy() -> Path | None:
    """Find the program beside this Python, where pip puts it, or on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    if sys.executable and os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("py-spy")
    return Path(on_path) if on_path else None


def dump(
    program: Path,
    pid: int,
    time_limit_s: float,
    *,
    nonblocking: bool,
    local_variables: bool = False,
) -> bytes:
    """Run ``py-spy dump --json``.

    A py-spy that is killed leaves its target running: it attaches with PTRACE_SEIZE, which the
    kernel undoes when the tracer ends (153 kills at random moments, 0.4.3: never stopped).

    Args:
        program: As `find_py_spy` found it.
        pid: The process to read.
        time_limit_s: Seconds until it is killed.
        nonblocking: Read without pausing the process.
        local_variables: Of every frame too, as short text.

    Returns:
        Its JSON.

    Raises:
        PySpyFailed: It could not be started or reported an error.
        PySpyLate: It took longer.
    """
    command = [str(program), "dump", "--json", "--pid", str(pid)]
    command += ["--nonblocking"] if nonblocking else []
    command += [LONG_VALUES] if local_variables else []
    process = _start(command)
    try:
        output, complaint = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired as error:
        raise PySpyLate(f"py-spy gave no answer within {time_limit_s:g} s") from error
    finally:
        _end(process)
    if process.returncode != 0:
        raise PySpyFailed(_in_one_line(complaint) or f"it ended with {process.returncode}")
    return output


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **QUIET},
            start_new_session=True,
        )
    except OSError as error:
        raise PySpyFailed(f"{command[0]} cannot be started ({error.strerror})") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it and whatever it started, unless it has ended; one stuck in the kernel is left."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=LAST_GRACE_S)


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
