"""How much memory is left to a process: in its control group, or in the machine."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lightning_hangcheck.model.evidence import MemoryUse
from lightning_hangcheck.probes.proc_file import read_proc, read_table

GROUPS = Path("/sys/fs/cgroup")


class _Files(NamedTuple):
    """Names in one version of the kernel's control groups."""

    folder: str
    used: str
    limit: str
    cached: str


UNIFIED = _Files("", "memory.current", "memory.max", "inactive_file")
SEPARATE = _Files("memory", "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")


def memory_use(pid: int, groups: Path = GROUPS) -> MemoryUse | None:
    """Read memory in use and its limit; about 100 microseconds.

    Cached files that nobody used lately count as free: the kernel drops them first.

    Args:
        pid: The process.
        groups: Where control groups are mounted.

    Returns:
        The tightest limit that holds for it; None where nothing can be read.
    """
    found = [use for use in (_of_machine(), *_of_groups(pid, groups)) if use is not None]
    return min(found, key=lambda use: use.limit_bytes - use.used_bytes, default=None)


def _of_machine() -> MemoryUse | None:
    try:
        rows = {row[0]: int(row[1]) * 1024 for row in read_table("/proc/meminfo")}
        return MemoryUse(rows["MemTotal:"] - rows["MemAvailable:"], rows["MemTotal:"], "machine")
    except (OSError, KeyError, IndexError, ValueError):
        return None


def _of_groups(pid: int, groups: Path) -> list[MemoryUse | None]:
    """The process's group and those above it: each may have a limit."""
    try:
        lines = read_proc(f"/proc/{pid}/cgroup").decode(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        files = UNIFIED if not controllers else SEPARATE
        if not controllers or "memory" in controllers.split(","):
            inner = Path(path.lstrip("/"))
            found += [_of_group(groups / files.folder / one, files) for one in _upwards(inner)]
    return found


def _upwards(path: Path) -> list[Path]:
    return [path, *path.parents]


def _of_group(folder: Path, files: _Files) -> MemoryUse | None:
    try:
        used, limit = _number(folder / files.used), _number(folder / files.limit)
        cached = {row[0]: int(row[1]) for row in read_table(str(folder / "memory.stat"))}
    except (OSError, IndexError, ValueError):
        return None
    return MemoryUse(max(0, used - cached.get(files.cached, 0)), limit, "control group")


def _number(file: Path) -> int:
    """Read a number; ``max``, which is no limit, is a ValueError."""
    return int(read_proc(str(file)))
