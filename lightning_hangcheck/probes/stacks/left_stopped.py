"""After a look that paused a process: is any thread of it still stopped, and does it go on?

py-spy attaches with PTRACE_SEIZE, which the kernel undoes when py-spy ends, however it ends. But
processes have been seen that stayed blocked for hours after a look (py-spy issues 565 and 872), so
nobody takes that on trust.
"""

from __future__ import annotations

import os
import signal
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


def set_going(pid: int) -> str:
    """See that a process which nobody had stopped before a look runs on after it.

    Args:
        pid: The process; none of its threads was stopped when the look began.

    Returns:
        What was wrong, and whether it goes on now; empty where nothing was.
    """
    if not _stays_stopped(pid):
        return ""
    tracer = _tracer_of(pid)
    if tracer:
        return f"threads of it are held by process {tracer}: kill -KILL {tracer} lets them go"
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)
    if _stays_stopped(pid):
        return f"threads of it stay stopped after the look: kill -CONT {pid}"
    return "the look left it stopped; it was sent SIGCONT and goes on"


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
