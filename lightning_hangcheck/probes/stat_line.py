"""Reads the one line of /proc/PID/stat for the probes, at the least cost."""

from __future__ import annotations

from lightning_hangcheck.probes.proc_file import read_proc
from lightning_hangcheck.rundir.process_stat import StatLine, parse_stat


def read_stat(pid: int, tid: int | None = None) -> StatLine:
    """Read the line of a process, or of one of its threads.

    Raises:
        OSError: As `read_proc`.
    """
    task = "" if tid is None else f"/task/{tid}"
    return parse_stat(read_proc(f"/proc/{pid}{task}/stat"))
