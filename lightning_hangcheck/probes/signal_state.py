"""What a process does with a signal, as /proc tells everybody: no permission is needed for it."""

from __future__ import annotations

import os

from lightning_hangcheck.probes.proc_file import read_proc


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal.

    Raises:
        OSError: As `read_proc`.
    """
    return _has(f"/proc/{pid}/status", b"SigCgt", number)


def is_pending(pid: int, number: int) -> bool:
    """Whether the signal was sent to the process and no thread has taken it yet.

    Raises:
        OSError: As `read_proc`.
    """
    return _has(f"/proc/{pid}/status", b"ShdPnd", number)


def blocking_threads(pid: int, number: int) -> frozenset[int]:
    """Return the threads that block the signal; while a handler runs, its thread does.

    About 30 microseconds a thread.

    Raises:
        OSError: The process is gone.
    """
    found = set()
    for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a hot path
        try:
            if _has(f"/proc/{pid}/task/{tid}/status", b"SigBlk", number):
                found.add(int(tid))
        except OSError:
            continue  # this thread ended since it was listed
    return frozenset(found)


def _has(path: str, field: bytes, number: int) -> bool:
    for line in read_proc(path).splitlines():
        name, _, mask = line.partition(b":")
        if name == field:
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False
