"""How long has a process slept? The kernel remembers, so a silence has a length before we came."""

from __future__ import annotations

import os
import re
import threading

from lightning_hangcheck.probes.proc.files import read_proc

# kernel/sched/debug.c: milliseconds on the clock of the processor that the thread last ran on.
_LAST_RAN = re.compile(rb"^se\.exec_start\s*:\s*(\d+\.\d+)$", re.MULTILINE)
PROCESSOR_FIELD = 36  # field 39 of /proc/PID/stat, counted behind the command name
SLEEPING = (b"S", b"D", b"T")


def slept_s(pid: int, tid: int | None = None) -> float | None:
    """Return how long a thread has not been on any processor, seconds.

    Takes 0.5 ms and does not disturb the process. A thread that polls sleeps only since its last
    poll, and one that was dumped since its dump, unless it was read without being paused.

    Clocks of processors drift apart (1.5 s in 5,000 s on one machine), so this thread moves for a
    moment to the processor that the other one last ran on and reads its own time there.

    Args:
        pid: Its process.
        tid: None for the main one.

    Returns:
        0 where it runs; None where the process is gone, or its kernel or a container does not
        show it (/proc/PID/sched, CONFIG_SCHED_DEBUG).
    """
    thread = f"/proc/{pid}/task/{tid or pid}"
    try:
        fields = read_proc(f"{thread}/stat").rpartition(b")")[2].split()
        last_ran = _last_ran_ms(f"{thread}/sched")
        if fields[0] not in SLEEPING:
            return 0.0
        now = _now_ms(int(fields[PROCESSOR_FIELD]))
    except OSError:
        return None
    if last_ran is None or now is None:
        return None
    return max(0.0, now - last_ran) / 1000


def _last_ran_ms(path: str) -> float | None:
    found = _LAST_RAN.search(read_proc(path))
    return float(found[1]) if found else None


def _now_ms(processor: int) -> float | None:
    """Read the clock of a processor, as the scheduler keeps it.

    Raises:
        OSError: We may not run there.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        return _last_ran_ms(f"/proc/self/task/{threading.get_native_id()}/sched")
    finally:
        os.sched_setaffinity(0, allowed)
