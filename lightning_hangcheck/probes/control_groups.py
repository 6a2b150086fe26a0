"""The control groups whose memory a process counts towards, in both versions of the kernel's."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lightning_hangcheck.probes.proc_file import read_proc

GROUPS = Path("/sys/fs/cgroup")


class MemoryFiles(NamedTuple):
    """Names in one version of the kernel's control groups."""

    folder: str
    used: str
    limit: str
    cached: str
    kills: str


UNIFIED = MemoryFiles("", "memory.current", "memory.max", "inactive_file", "memory.events")
SEPARATE = MemoryFiles(
    "memory",
    "memory.usage_in_bytes",
    "memory.limit_in_bytes",
    "total_inactive_file",
    "memory.oom_control",
)


def memory_groups(pid: int, groups: Path) -> list[tuple[Path, MemoryFiles]]:
    """Return the folder of the process's group, then of those above it: each may have a limit.

    Args:
        pid: The process.
        groups: Where control groups are mounted.

    Returns:
        None at all where it cannot be read.
    """
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
            found += [(groups / files.folder / one, files) for one in (inner, *inner.parents)]
    return found
