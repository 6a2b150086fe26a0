"""Locks that native code polls for: it tries one, sleeps a moment and tries again.

SQLite does so, with the file open: that alone tells for which.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lightning_hangcheck.model.evidence import WaitTarget
from lightning_hangcheck.probes.proc.files import read_proc
from lightning_hangcheck.probes.waits.system_calls import ABSOLUTE, CALLS, RESTART

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.evidence import ThreadState
    from lightning_hangcheck.probes.waits.descriptors import Descriptors, Opened
    from lightning_hangcheck.probes.waits.locks.file_locks import FileLock

INODE = re.compile(rb"^ino:\s*(\d+)$", re.MULTILINE)


def polled_file(
    thread: ThreadState, pid: int, descriptors: Descriptors, locks: Sequence[FileLock]
) -> tuple[WaitTarget, tuple[int, ...]] | None:
    """Tell which file a sleeping thread's process has open that another keeps locked.

    No proof that it sleeps for that: only a process of the job that has the same file open, and
    locked for itself alone, counts.

    Args:
        thread: One that waits for nothing but a time.
        pid: Its process.
        descriptors: Of the job's processes.
        locks: The kernel's table.

    Returns:
        The target without holders, and the holders' pids; None where there is no such file.
    """
    if not _sleeps_for_a_moment(thread):
        return None
    owned = {lock.inode: lock.pid for lock in locks if lock.exclusive and not lock.waiting}
    for name, opened in descriptors.files(pid):
        holder = owned.get(_inode(opened))
        if holder is not None and holder != pid and holder in descriptors.owners(name):
            return WaitTarget(call="sleep", kind="lock", name=name), (holder,)
    return None


def _sleeps_for_a_moment(thread: ThreadState) -> bool:
    """Native code sleeps for a time, Python (3.11 and later) until a time."""
    call = CALLS.get(thread.syscall) if thread.syscall is not None else None
    if call is None or "nanosleep" not in thread.wchan:
        return False
    until = call.name == "clock_nanosleep" and thread.arguments[1] == ABSOLUTE
    return call.name in ("nanosleep", "clock_nanosleep", RESTART) and not until


def _inode(opened: Opened) -> int:
    """Read a descriptor's inode without asking its file system; 0 before Linux 5.14."""
    try:
        found = INODE.search(read_proc(f"/proc/{opened.pid}/fdinfo/{opened.number}"))
    except OSError:
        return 0
    return int(found[1]) if found is not None else 0
