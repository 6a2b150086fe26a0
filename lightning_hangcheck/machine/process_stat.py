"""The one line of /proc/PID/stat, as proc(5) numbers its fields.

The process id and the start time in it name a process for ever.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEAD = ("Z", "X")
MOST_ANCESTORS = 64
"""Process ids are given anew: a chain that is longer may lead round."""


class StatLine(NamedTuple):
    """The fields that we use.

    Attributes:
        name: Field 2: of the program, or as the thread was named.
        state: Field 3.
        parent_pid: Field 4.
        major_faults: Field 12.
        cpu_s: Fields 14 and 15, user and system time of all its threads (of the one thread, in a
            thread's file), at the kernel's tick.
        started_ticks: Field 22, clock ticks between boot and the start of the process.
        rss_bytes: Field 24.
        caught_signals: Field 34, a bit for each signal up to 31 that it has a handler for.
        exit_status: Field 52: of a zombie its wait status, 0 where ptrace access is refused; of a
            living process it means nothing.
    """

    name: str
    state: str
    parent_pid: int
    major_faults: int
    cpu_s: float
    started_ticks: int
    rss_bytes: int
    caught_signals: int
    exit_status: int


def parse_stat(line: bytes) -> StatLine:
    """Take the line apart behind the command name, which may itself hold brackets and spaces.

    Raises:
        ValueError: This is no such line.
        IndexError: It is cut short.
    """
    behind = line.rindex(b")")
    fields = line[behind + 2 :].split()
    return StatLine(
        name=line[line.index(b"(") + 1 : behind].decode(errors="replace"),
        state=fields[0].decode("ascii"),
        parent_pid=int(fields[1]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        started_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        caught_signals=int(fields[31]),
        exit_status=int(fields[49]),
    )


def read_process_stat(pid: int) -> StatLine | None:
    """Read the line of a process; None if it is gone, or not to be seen from here."""
    try:
        return parse_stat(_stat_file(pid).read_bytes())
    except (OSError, IndexError, ValueError):
        return None


def ancestors(pid: int) -> Iterator[int]:
    """Return the process that started this one, and so on, as far as can be seen; without init."""
    for _ in range(MOST_ANCESTORS):
        stat = read_process_stat(pid)
        if stat is None or stat.parent_pid <= 1:
            return
        pid = stat.parent_pid
        yield pid


def is_alive(pid: int, started_ticks: int) -> bool:
    """Whether this very process lives: a zombie, or another process with its id, does not count.

    Where the kernel will not say, it counts as alive: unseen is not gone.
    """
    try:
        stat = parse_stat(_stat_file(pid).read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, IndexError, ValueError):
        return True
    return stat.started_ticks == started_ticks and stat.state not in _DEAD


def ticks_since_boot() -> int:
    """Return the present moment as the line tells the start of a process."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)


def _stat_file(pid: int) -> Path:
    return Path(f"/proc/{pid}/stat")
