"""Runs other programs within a time limit; whatever they started ends with them.

Also reads the options of an interpreter's command line, and where a program's output stays back.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from itertools import dropwhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LAST_GRACE_S = 1.0
POLL_S = 0.02


class ChildLate(Exception):
    """The program did not end in time, or was interrupted, and was killed."""


@contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str], output: int, complaint: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program in its own process group; what is left of the group is killed at the end."""
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output if complaint is None else complaint,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:  # not reaped, so its group's number is not reused
            with suppress(ProcessLookupError, PermissionError):  # all ended, or are another user's
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=LAST_GRACE_S)


def answer_of(
    command: Sequence[str], time_limit_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end in exactly this environment.

    Raises OSError if it cannot be started, ChildLate if it took too long and was killed with all
    that it started. A process that is stuck in the kernel is left behind.
    """
    with _started(command, environment, subprocess.PIPE, None) as process:
        try:
            output, complaint = process.communicate(timeout=time_limit_s)
        except subprocess.TimeoutExpired as error:
            raise ChildLate(f"no answer within {time_limit_s:.3g} s") from error
    return subprocess.CompletedProcess(process.args, process.returncode, output, complaint)


def run_to_its_end(
    command: Sequence[str],
    time_limit_s: float,
    environment: Mapping[str, str],
    output: int,
    complaint: int | None = None,
    *,
    most: int = resource.RLIM_INFINITY,
    given_up: threading.Event | None = None,
) -> int:
    """Run a program to its end and return its exit code; a signal's is negative.

    What it leaves in its process group is killed. Its output goes to one or two descriptors, at
    most ``most`` bytes to each file. Setting ``given_up`` kills it, too. Raises as `answer_of`.
    """
    deadline, given_up = time.monotonic() + time_limit_s, given_up or threading.Event()
    with _started(command, environment, output, complaint) as process:
        if most != resource.RLIM_INFINITY:
            with suppress(OSError, ValueError):  # it ended, or has a lower limit
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
        # its end is awaited without reaping it, so that its number still names its group
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= deadline:
                raise ChildLate(f"no answer within {time_limit_s:.3g} s")
            if given_up.wait(POLL_S):
                raise ChildLate("it was interrupted")
    return process.returncode


def end_with_children(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask a command to end its children; after ``grace_s`` kill what is left."""
    import psutil  # imported here: ranks use this file too, and need not pay for it

    if process.poll() is not None:
        return
    with suppress(psutil.NoSuchProcess):  # once the command is gone, nothing leads to its children
        below = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        for each in below:  # a stopped process gets its signal only then
            with suppress(psutil.Error):
                each.resume()
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        for each in below:
            with suppress(psutil.Error):
                each.kill()
    process.kill()
    process.wait()


VARIABLE = "PYTHONUNBUFFERED"


def python_options(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield an interpreter's options from the words after it: letter, and value if any."""
    # the last is the module or code of ``-m`` or ``-c``, or, without a letter, the script
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word.startswith("--"):
            yield "", word
            return
        for at, letter in enumerate(word[1:], 2):
            if letter in "WXcm":
                yield letter, word[at:] or next(rest, "")
                if letter in "cm":
                    return
                break
            yield letter, ""


def is_unbuffered(environment: Mapping[str, str], command: Sequence[str]) -> bool:
    """Whether Python was told to flush each line; the script's own options do not count."""
    words = dropwhile(lambda word: not word.rpartition("/")[2].startswith("python"), command)
    next(words, "")
    options = (letter for letter, _ in python_options(words))
    return bool(environment.get(VARIABLE)) or "u" in options


def kept_back_in(mode: int) -> str | None:
    """Return the kind of buffered output; None if it is not buffered, as on a terminal."""
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a file" if stat.S_ISREG(mode) else None
