"""How long this process has been running, counted from its start and not from our import."""

from __future__ import annotations

import os
import time

from lightning_hangcheck.rundir.process_stat import TICKS_PER_SECOND, read_process_stat


def process_start_ns() -> int:
    """When this process started, on CLOCK_BOOTTIME.

    The kernel gives the start in clock ticks since boot, suspended time included (proc(5), field
    22), cut to a whole tick: the true start is up to 10 ms later. Where /proc does not show it, or
    shows what cannot be (a sandbox with its own idea of boot), the start is now.

    Returns:
        Nanoseconds since boot.
    """
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    stat = read_process_stat(os.getpid())
    if stat is None:
        return now
    start = stat.started_ticks * 1_000_000_000 // TICKS_PER_SECOND
    return start if 0 < start <= now else now


def seconds_since(start_ns: int) -> float:
    """Seconds since a moment of CLOCK_BOOTTIME, a suspended laptop's sleep included."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start_ns) / 1e9
