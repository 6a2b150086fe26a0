"""Pipes, sockets and the like that processes have open: who is at the other end of one."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.probes.proc.files import read_proc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOCKET = re.compile(r"socket:\[(\d+)\]")
READS, WRITES = 0o400, 0o200
PIDFD, EVENTFD = "anon_inode:[pidfd]", "anon_inode:[eventfd]"
EVENT = "eventfd:"
OF_PROCESS = re.compile(rb"^Pid:\s*([1-9]\d*)$", re.MULTILINE)
OF_EVENT = re.compile(rb"^eventfd-id:\s*(\d+)$", re.MULTILINE)  # since Linux 5.2


class Opened(NamedTuple):
    """A process that has something open, and for what (proc(5): the link's own mode)."""

    pid: int
    number: int
    reads: bool
    writes: bool


class Descriptors:
    """What each of some processes has open, read once; about 3 microseconds a descriptor.

    Args:
        pids: The processes; one that may not be read, or is gone, has nothing open.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._by_name: dict[str, list[Opened]] = {}
        self._sockets: dict[int, list[int]] = {}
        for pid in pids:
            for name, number, mode in _links(pid):
                opened = Opened(pid, number, bool(mode & READS), bool(mode & WRITES))
                self._by_name.setdefault(name, []).append(opened)
                found = SOCKET.fullmatch(name)
                if found is not None:
                    self._sockets.setdefault(pid, []).append(int(found[1]))

    def sockets(self, pid: int) -> list[int]:
        """Inodes of a process's sockets."""
        return self._sockets.get(pid, [])

    def files(self, pid: int) -> list[tuple[str, Opened]]:
        """Files that a process has open, by path."""
        return [
            (name, one)
            for name, everyone in self._by_name.items()
            if name.startswith("/") and not name.startswith("/dev/")
            for one in everyone
            if one.pid == pid
        ]

    def owners(self, name: str) -> tuple[int, ...]:
        """Processes that have this open."""
        return tuple(dict.fromkeys(one.pid for one in self._by_name.get(name, ())))

    def owners_of_event(self, name: str) -> tuple[int, ...]:
        """Processes that have an eventfd, by what `event_behind` calls it."""
        every = self._by_name.get(EVENTFD, ())
        having = (one.pid for one in every if event_behind(one.pid, one.number) == name)
        return tuple(dict.fromkeys(having))

    def lockers(self, name: str) -> tuple[int, ...]:
        """Processes that have a lock on this through a descriptor.

        The lock table names the process that asked first: not one that inherited the descriptor,
        and none for locks of open file descriptions.
        """
        holding = (one.pid for one in self._by_name.get(name, ()) if _has_lock(one))
        return tuple(dict.fromkeys(holding))

    def at_other_end(self, name: str, pid: int) -> tuple[int, ...]:
        """Processes at the other end of a pipe or FIFO from one.

        One that reads waits for those that write, and the other way round; a process that has both
        ends waits for the others that have them, and for itself where there is no other.
        """
        everyone = self._by_name.get(name, ())
        own = [one for one in everyone if one.pid == pid]
        reads, writes = any(one.reads for one in own), any(one.writes for one in own)
        ends = dict.fromkeys(
            one.pid for one in everyone if (reads and one.writes) or (writes and one.reads)
        )
        return tuple(end for end in ends if end != pid) or tuple(ends)


def process_behind(pid: int, number: int) -> str:
    """Return the number of the process that a pidfd stands for; empty once that has ended."""
    found = OF_PROCESS.search(_facts(pid, number))
    return found[1].decode() if found is not None else ""


def event_behind(pid: int, number: int) -> str:
    """Name an eventfd, as one and the same in all processes that have it; empty if unknown."""
    found = OF_EVENT.search(_facts(pid, number))
    return f"{EVENT}[{found[1].decode()}]" if found is not None else ""


def _has_lock(opened: Opened) -> bool:
    return b"\nlock:" in _facts(opened.pid, opened.number)


def _facts(pid: int, number: int) -> bytes:
    try:
        return read_proc(f"/proc/{pid}/fdinfo/{number}")
    except OSError:
        return b""


def _links(pid: int) -> Iterator[tuple[str, int, int]]:
    """Names, numbers and modes of descriptors; only links are read, no file is touched."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208 - twice as fast, a hot path
    except OSError:
        return
    for number in numbers:
        path = f"{folder}/{number}"
        try:
            yield os.readlink(path), int(number), os.lstat(path).st_mode  # noqa: PTH115 - a hot path
        except OSError:
            continue
