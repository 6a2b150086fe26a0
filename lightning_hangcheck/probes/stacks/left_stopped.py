"""After a look that paused a process: is any thread of it stopped, and who holds it?

py-spy attaches with PTRACE_SEIZE, which the kernel undoes when py-spy ends, however it ends. A
py-spy that lives on holds them (its issues 565 and 872). A stop without a tracer is somebody's
signal, sent during the look: only whoever sent it ends it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from lightning_hangcheck.probes.proc.files import read_proc, read_stat

SETTLING_S = 0.5
"""The kernel lets a tracee go within microseconds of its tracer's end; a busy machine needs a tick
or two."""
POLL_S = 0.01


def stopped_threads(pid: int) -> frozenset[int]:
    """Return the threads in state T (stopped) or t (held by a tracer); about 10 us a thread."""
    stopped = set()
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a hot path
            with suppress(OSError):
                if read_stat(pid, int(tid)).state in "Tt":
                    stopped.add(int(tid))
    return frozenset(stopped)


def why_stopped(pid: int) -> str:
    """Say why a process that nobody had stopped before a look does not run after it.

    Args:
        pid: The process; none of its threads was stopped when the look began.

    Returns:
        What holds it and the command that lets it go; empty where it runs.
    """
    if not _stays_stopped(pid):
        return ""
    tracer = _tracer_of(pid)
    if tracer:
        return f"threads of it are held by process {tracer}: kill -KILL {tracer} lets them go"
    return f"somebody stopped it by a signal during the look: kill -CONT {pid} lets it go on"


def _stays_stopped(pid: int) -> bool:
    deadline = time.monotonic() + SETTLING_S
    while stopped_threads(pid):
        if time.monotonic() > deadline:
            return True
        time.sleep(POLL_S)
    return False


def _tracer_of(pid: int) -> int:
    with suppress(OSError):
        for line in read_proc(f"/proc/{pid}/status").splitlines():
            name, _, value = line.partition(b":")
            if name == b"TracerPid":
                return int(value)
    return 0
