"""Can py-spy read the stack of another process here? Tried on a real one."""

from __future__ import annotations

import select
import subprocess
import time
from contextlib import suppress

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.isolation.command import interpreter
from lightning_hangcheck.isolation.environment import own_environment
from lightning_hangcheck.look.proc import why_filtered, why_refused
from lightning_hangcheck.look.py_spy import find_py_spy, python_stacks

NAME = "stacks readable"
TIME_LIMIT_S = 5.0
# It blocks in reading its input, which ends with us, and so does the program.
WAITING_PROGRAM = "import os; os.write(1, b'here'); os.read(0, 1)"


def stacks_readable(time_limit_s: float = TIME_LIMIT_S) -> Check:
    """Start a tiny Python process, take its stack as a sidecar would, and end it.

    Args:
        time_limit_s: Seconds for all of it.
    """
    deadline = time.monotonic() + time_limit_s
    try:
        child = subprocess.Popen(
            [interpreter(), "-I", "-S", "-c", WAITING_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own_environment(),
        )
    except OSError as error:
        sentence = f"{interpreter()} cannot be started ({error.strerror})"
        return Check(NAME, "warning", sentence, "check the limits on processes: ulimit -u")
    try:
        return _check_child(child, deadline)
    finally:
        _end(child)


def _check_child(child: subprocess.Popen[bytes], deadline: float) -> Check:
    output = list(filter(None, [child.stdout]))
    ready, _, _ = select.select(output, [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        sentence = "a first Python process took too long to start, so this could not be tried"
        return Check(NAME, "warning", sentence, "try again while the machine is less busy")
    stack, gaps = python_stacks(child.pid, None, max(0.1, deadline - time.monotonic()))
    if stack is not None and any(thread.frames for thread in stack.threads):
        return Check(NAME, "ok", "py-spy reads the stack of another process")
    return _unreadable(child.pid, gaps[0].reason if gaps else "py-spy shows no Python frame")


def _unreadable(pid: int, why: str) -> Check:
    if find_py_spy() is None:
        return Check(NAME, "failed", "py-spy is not installed", "pip install py-spy")
    refusal = why_refused(pid) or why_filtered()
    if refusal is not None:
        return Check(NAME, "failed", f"no stack can be read: {refusal.why}", refusal.remedy)
    return Check(NAME, "failed", f"no stack can be read: {why}", "pip install -U py-spy")


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    with suppress(subprocess.TimeoutExpired):
        child.communicate(timeout=1.0)
