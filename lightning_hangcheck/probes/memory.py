"""How much memory is left to a process, in its control group or in the machine, and what that cost.

Limits come from the control groups that the process counts towards. Whether the kernel ended
processes for want of memory it counts too, without naming any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lightning_hangcheck.machine.control_groups import GROUPS, groups_of
from lightning_hangcheck.model.evidence import MemoryUse
from lightning_hangcheck.probes.proc.files import read_proc, read_table

if TYPE_CHECKING:
    from pathlib import Path


class MemoryFiles(NamedTuple):
    """Names in one version of the kernel's control groups."""

    used: str
    limit: str
    cached: str
    kills: str


UNIFIED = MemoryFiles("memory.current", "memory.max", "inactive_file", "memory.events")
SEPARATE = MemoryFiles(
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)


def memory_groups(pid: int, groups: Path) -> list[tuple[Path, MemoryFiles]]:
    """Return the folders of the process's groups, innermost first, each with its files' names.

    Args:
        pid: The process.
        groups: Where control groups are mounted.
    """
    found = groups_of(pid, "memory", groups)
    return [(folder, UNIFIED if unified else SEPARATE) for folder, unified in found]


def memory_use(pid: int, groups: Path = GROUPS) -> MemoryUse | None:
    """Read memory in use and its limit; about 100 microseconds.

    Cached files that nobody used lately count as free: the kernel drops them first.

    Args:
        pid: The process.
        groups: Where control groups are mounted.

    Returns:
        The tightest limit that holds for it; None where nothing can be read.
    """
    groups_of_it = (_of_group(*one) for one in memory_groups(pid, groups))
    found = [use for use in (_of_machine(), *groups_of_it) if use is not None]
    return min(found, key=lambda use: use.limit_bytes - use.used_bytes, default=None)


def _of_machine() -> MemoryUse | None:
    try:
        rows = {row[0]: int(row[1]) * 1024 for row in read_table("/proc/meminfo")}
        return MemoryUse(rows["MemTotal:"] - rows["MemAvailable:"], rows["MemTotal:"], "machine")
    except (OSError, KeyError, IndexError, ValueError):
        return None


def _of_group(folder: Path, files: MemoryFiles) -> MemoryUse | None:
    try:
        used, limit = _number(folder / files.used), _number(folder / files.limit)
        cached = {row[0]: int(row[1]) for row in read_table(str(folder / "memory.stat"))}
    except (OSError, IndexError, ValueError):
        return None
    return MemoryUse(max(0, used - cached.get(files.cached, 0)), limit, "control group")


def _number(file: Path) -> int:
    """Read a number; ``max``, which is no limit, is a ValueError."""
    return int(read_proc(str(file)))


MACHINE = "/proc/vmstat"
KILLS = "oom_kill"


class KillCounter(Struct, frozen=True):
    """A counter of the kernel's out-of-memory killer, and what it showed when it was first read.

    Attributes:
        scope: Whose processes it counts: ``control group`` or ``machine``.
        file: Where it is.
    """

    scope: str
    file: str
    kills: int

    def since(self) -> int:
        """Return how many processes were ended since; 0 too where it can no longer be read."""
        return max(0, (_read(self.file) or 0) - self.kills)


def kill_counter(pid: int, groups: Path = GROUPS) -> KillCounter | None:
    """Read the counter nearest to a process; about 100 microseconds.

    Args:
        pid: The process, as long as it lives: its group is not known afterwards.
        groups: Where control groups are mounted.

    Returns:
        None where the kernel has none (before 4.13).
    """
    for folder, files in memory_groups(pid, groups):
        file = str(folder / files.kills)
        if (kills := _read(file)) is not None:
            return KillCounter("control group", file, kills)
    kills = _read(MACHINE)
    return None if kills is None else KillCounter("machine", MACHINE, kills)


def _read(file: str) -> int | None:
    try:
        return next((int(row[1]) for row in read_table(file) if row[0] == KILLS), None)
    except (OSError, IndexError, ValueError):
        return None
