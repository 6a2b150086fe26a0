"""Reading files of /proc at the least cost, a process's line of numbers and memory among them.

Which of them can block (read in the sources of Linux 6.x, fs/proc): ``stat``, ``status``, ``wchan``
and ``children`` take no lock that a stuck process can hold; ``syscall`` and ``io`` wait only while
the process is inside execve. ``cmdline`` and ``environ`` read the process's memory under its
mmap lock: they can block for as long as one of its threads is stuck in the kernel inside mmap or a
page fault (a dead network file system), so they are read with `time_limit.within`.
"""

from __future__ import annotations

import os

from lightning_hangcheck.machine.process_stat import StatLine, parse_stat
from lightning_hangcheck.time_limit import NoAnswer, within

# ENOENT when it is opened, ESRCH when it ends between open and read
GONE = (FileNotFoundError, ProcessLookupError)
MEMORY_LIMIT_S = 0.2
PAGE = 4096


def read_proc(path: str) -> bytes:
    """Read a whole file of /proc, about 8 microseconds.

    Raises:
        OSError: One of ``GONE`` where the process has ended; PermissionError where it is not ours.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, 65536)
        while len(data) >= 4096 and (more := os.read(descriptor, 65536)):
            data += more
        return data
    finally:
        os.close(descriptor)


def read_table(path: str) -> list[list[str]]:
    """Read a table of /proc, a line a row, by its words.

    The kernel hands a table out in pieces that end with a line, so a short piece is not the last.

    Raises:
        OSError: As `read_proc`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, 65536):
            pieces.append(piece)
    finally:
        os.close(descriptor)
    return [line.split() for line in b"".join(pieces).decode(errors="replace").splitlines()]


def read_stat(pid: int, tid: int | None = None) -> StatLine:
    """Read the line of a process, or of one of its threads.

    Raises:
        OSError: As `read_proc`.
    """
    task = "" if tid is None else f"/task/{tid}"
    return parse_stat(read_proc(f"/proc/{pid}{task}/stat"))


def read_memory(pid: int, address: int, length: int) -> bytes:
    """Read memory of a process without stopping it; takes its mmap lock, so it may block.

    Returns:
        Fewer bytes where the mapping ends before; none where it cannot be read, or not in 0.2 s.
    """
    try:
        return within(MEMORY_LIMIT_S, lambda: _read_pages(pid, address, length))
    except (NoAnswer, OSError, OverflowError):
        return b""


def _read_pages(pid: int, address: int, length: int) -> bytes:
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
