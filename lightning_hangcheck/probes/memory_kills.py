"""Did the kernel end processes for want of memory? It counts them, and names none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.machine.control_groups import GROUPS
from lightning_hangcheck.probes.memory_groups import memory_groups
from lightning_hangcheck.probes.proc_file import read_table

if TYPE_CHECKING:
    from pathlib import Path

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
