"""Names a process for ever: its id and start time, as /proc/PID/stat shows them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_DEAD = ("Z", "X")


class ProcessStat(NamedTuple):
    """Three fields of /proc/PID/stat, see proc(5).

    Attributes:
        state: Field 3.
        parent_pid: Field 4.
        started_ticks: Field 22, clock ticks between boot and the start of the process.
    """

    state: str
    parent_pid: int
    started_ticks: int


def read_process_stat(pid: int) -> ProcessStat | None:
    """Read them; None if the process is gone, or not to be seen from here."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        # behind the command name, which may itself hold brackets and blanks
        fields = line.rpartition(")")[2].split()
        return ProcessStat(fields[0], int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def is_alive(pid: int, started_ticks: int) -> bool:
    """Whether this very process lives: a zombie, or another process with its id, does not count."""
    stat = read_process_stat(pid)
    return stat is not None and stat.started_ticks == started_ticks and stat.state not in _DEAD
