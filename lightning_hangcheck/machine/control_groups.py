"""The control groups that a process counts towards, in both versions of the kernel's."""

from __future__ import annotations

from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def groups_of(pid: int, controller: str, groups: Path = GROUPS) -> list[tuple[Path, bool]]:
    """Return the folder of the process's group, then of those above it: each may have a limit.

    Args:
        pid: The process.
        controller: ``memory`` or ``pids``.
        groups: Where control groups are mounted.

    Returns:
        Each folder, and whether it is of the unified hierarchy (version 2), whose files have names
        of their own; none at all where it cannot be read.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        unified = not controllers
        if unified or controller in controllers.split(","):
            inner = Path(path.lstrip("/"))
            mounted = groups if unified else groups / controller
            found += [(mounted / one, unified) for one in (inner, *inner.parents)]
    return found
