"""The control groups whose memory a process counts towards, and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.machine.control_groups import groups_of

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
