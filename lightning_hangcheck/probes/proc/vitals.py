"""Is it alive, and does it use the processor? Cheap enough to ask several times a second."""

from __future__ import annotations

import os

from msgspec import Struct

from lightning_hangcheck.probes.proc.files import GONE, read_proc, read_stat

UNREADABLE = "?"
UNKNOWN_START = 0


class Vitals(Struct, frozen=True, kw_only=True):
    """Signs of life of one process.

    Attributes:
        state: Letter of /proc/PID/stat (Z: it has ended and waits for its parent); ``?`` where it
            could not be read though it may well be alive (a /proc mounted with hidepid=1, no file
            descriptor left): unknown is not gone.
        cpu_s: User plus system time of all its threads so far, seconds.
        started_ticks: With the pid, names the process for ever; 0 where it is not known.
    """

    state: str
    cpu_s: float
    started_ticks: int

    def is_still(self, started_ticks: int) -> bool:
        """Whether this is the process that started then, as far as can be told.

        False means that it has ended and the kernel has given its pid to another.
        """
        return UNKNOWN_START in (self.started_ticks, started_ticks) or (
            self.started_ticks == started_ticks
        )


def vitals(pid: int) -> Vitals | None:
    """Read the signs of life of a process, in 10 microseconds; never blocks on the process.

    Returns:
        None where it is gone.
    """
    try:
        line = read_stat(pid)
    except GONE:
        return None
    except OSError:
        return Vitals(state=UNREADABLE, cpu_s=0.0, started_ticks=UNKNOWN_START)
    return Vitals(state=line.state, cpu_s=line.cpu_s, started_ticks=line.started_ticks)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice; unreadable is not gone."""
    signs = vitals(pid)
    return signs is None or signs.state in "ZX"


def main_thread_cpu_s(pid: int) -> float | None:
    """Seconds of processor time of the main thread alone, at the kernel's tick (usually 10 ms).

    Returns:
        None where the process is gone or cannot be read.
    """
    try:
        return read_stat(pid, pid).cpu_s
    except OSError:
        return None


def io_bytes(pid: int, tid: int | None = None) -> tuple[int, int] | None:
    """Bytes that passed through read-like and write-like calls so far (rchar, wchar).

    Those of a process hold those of its children that have ended, too; those of a thread do not.

    Args:
        pid: Process.
        tid: Thread of it, None for the process.

    Returns:
        None where it is gone, belongs to another user, or the kernel does not count.
    """
    try:
        text = read_proc(f"/proc/{pid}/io" if tid is None else f"/proc/{pid}/task/{tid}/io")
    except OSError:
        return None
    counts = dict(line.split(b": ") for line in text.splitlines())
    return int(counts[b"rchar"]), int(counts[b"wchar"])


def thread_ids(pid: int) -> dict[int, int]:
    """Return our ids of a process's threads by those that they have in its own pid namespace.

    A process in a container knows its threads by other ids than we do, and what is read from its
    memory tells those (NSpid in proc(5)).

    Returns:
        Empty where both are the same, or it is gone.
    """
    if len(_ids(f"/proc/{pid}/status")) < 2:
        return {}
    try:
        tids = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - a hot path
    except OSError:
        return {}
    every = [_ids(f"/proc/{pid}/task/{tid}/status") for tid in tids]
    return {ids[-1]: ids[0] for ids in every if ids}


def is_thread(pid: int, tid: int) -> bool:
    """Whether a process has a thread of this id, as the kernel names it to us."""
    return tid > 0 and os.path.exists(f"/proc/{pid}/task/{tid}")  # noqa: PTH110 - a hot path


def _ids(path: str) -> list[int]:
    """The ids of a process or thread in all pid namespaces from ours to its own; none if gone."""
    try:
        lines = read_proc(path).splitlines()
    except OSError:
        return []
    told = next((line for line in lines if line.startswith(b"NSpid:")), b"")
    return [int(word) for word in told.split()[1:]]
