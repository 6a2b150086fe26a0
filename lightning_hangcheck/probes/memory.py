"""A few bytes of another process's memory: what the arguments of its system call point to."""

from __future__ import annotations

import os

from lightning_hangcheck.probes.guard import NoAnswer, within

TIME_LIMIT_S = 0.2
LONGEST_PATH = 4096  # PATH_MAX of the kernel
PAGE = 4096


def read_memory(pid: int, address: int, length: int) -> bytes:
    """Read memory of a process without stopping it; takes its mmap lock, so it may block.

    Returns:
        Fewer bytes where the mapping ends before; none where it cannot be read, or not in 0.2 s.
    """
    try:
        return within(TIME_LIMIT_S, lambda: _read(pid, address, length))
    except (NoAnswer, OSError, OverflowError):
        return b""


def read_path(pid: int, address: int) -> str:
    """Read the path at an address; empty where that is not possible."""
    return read_memory(pid, address, LONGEST_PATH).partition(b"\0")[0].decode(errors="replace")


def _read(pid: int, address: int, length: int) -> bytes:
    """Read page by page: one read over the end of a mapping would fail as a whole."""
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    data = b""
    try:
        while len(data) < length:
            start = address + len(data)
            part = os.pread(descriptor, min(length - len(data), PAGE - start % PAGE), start)
            data += part
            if not part:
                break
    except OSError:
        if not data:
            raise
    finally:
        os.close(descriptor)
    return data
