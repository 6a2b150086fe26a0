"""The kernel's table of file locks: who holds one, and who waits for it."""

from __future__ import annotations

import os
from typing import NamedTuple

from lightning_hangcheck.probes.proc.files import read_table


class FileLock(NamedTuple):
    """A line of /proc/locks (proc(5)).

    Attributes:
        number: Waiters have the number of the lock that they wait for.
        waiting: The line is of a waiter (``->``).
        exclusive: It lets no other have one.
        pid: Process that asked; -1 for a lock of an open file description, 0 in another pid
            namespace.
        device: Major and minor number.
    """

    number: str
    waiting: bool
    exclusive: bool
    pid: int
    device: tuple[int, int]
    inode: int


def file_locks() -> tuple[FileLock, ...]:
    """Read the table; lines of another shape are left out, and an unreadable table is empty."""
    try:
        lines = read_table("/proc/locks")
    except OSError:
        return ()
    return tuple(lock for line in lines if (lock := parse_lock(line)) is not None)


def parse_lock(fields: list[str]) -> FileLock | None:
    """Read the words of a line: ``1: -> FLOCK  ADVISORY  WRITE 8815 fe:00:2146453 0 EOF``."""
    waiting = len(fields) > 1 and fields[1] == "->"
    words = [field for field in fields if field != "->"]
    try:
        major, minor, inode = words[5].split(":")
        return FileLock(
            number=words[0],
            waiting=waiting,
            exclusive=words[3] == "WRITE",
            pid=int(words[4]),
            device=(int(major, 16), int(minor, 16)),
            inode=int(inode),
        )
    except (IndexError, ValueError):
        return None


def holders_that_block(pid: int, locks: tuple[FileLock, ...]) -> tuple[int, ...]:
    """Return the processes that hold what a process waits for in flock or fcntl."""
    numbers = {lock.number for lock in locks if lock.waiting and lock.pid == pid}
    return tuple(
        lock.pid for lock in locks if lock.number in numbers and not lock.waiting and lock.pid > 0
    )


def holders_of(file: os.stat_result, locks: tuple[FileLock, ...]) -> tuple[int, ...]:
    """Return the processes that hold a lock on a file."""
    device = (os.major(file.st_dev), os.minor(file.st_dev))
    return tuple(
        lock.pid
        for lock in locks
        if not lock.waiting and lock.pid > 0 and (lock.inode, lock.device) == (file.st_ino, device)
    )
