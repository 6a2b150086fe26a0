"""How much memory is left to a process: in its control group, or in the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.machine.control_groups import GROUPS
from lightning_hangcheck.model.evidence import MemoryUse
from lightning_hangcheck.probes.memory_groups import memory_groups
from lightning_hangcheck.probes.proc_file import read_proc, read_table

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.probes.memory_groups import MemoryFiles


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
