"""Another program's answer within a time limit: what it started ends with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAST_GRACE_S = 1.0


class ChildLate(Exception):
    """The program gave no answer in time and was killed."""


def answer_of(
    command: Sequence[str], time_limit_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end.

    Args:
        command: Its path and arguments.
        time_limit_s: Seconds until it is killed, with whatever it started.
        environment: All of its environment.

    Returns:
        Its output, its complaints and its exit code.

    Raises:
        OSError: It cannot be started.
        ChildLate: It took longer. One that is stuck in the kernel is left behind.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        output, complaint = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired as error:
        raise ChildLate(f"no answer within {time_limit_s:.3g} s") from error
    finally:
        _end(process)
    return subprocess.CompletedProcess(process.args, process.returncode, output, complaint)


def exit_code_of(
    command: Sequence[str], time_limit_s: float, environment: Mapping[str, str], output: int
) -> int:
    """Run a program to its end; what it leaves in its process group ends then, too.

    Args:
        command: Its path and arguments.
        time_limit_s: Seconds until it is killed, with whatever it started.
        environment: All of its environment.
        output: Descriptor that it writes to, its complaints too.

    Returns:
        Its exit code, that of a signal below 0.

    Raises:
        OSError: It cannot be started.
        ChildLate: It took longer.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        if not _ends_within(process.pid, time_limit_s):
            raise ChildLate(f"no end within {time_limit_s:.3g} s")
    finally:
        _kill_group(process)
    return process.returncode


def _ends_within(pid: int, time_limit_s: float) -> bool:
    """Wait for its end without collecting it: so its group's number is given to nobody else."""
    descriptor = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], time_limit_s)
    finally:
        os.close(descriptor)
    return bool(ended)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=LAST_GRACE_S)
