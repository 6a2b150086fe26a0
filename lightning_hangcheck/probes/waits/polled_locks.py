"""Locks that are polled for: the kernel sees only sleep.

A Python library that polls has no file open, but a variable of its stack names it. Native code
(SQLite does) tries a lock, sleeps a moment and tries again, with the file open.
"""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lightning_hangcheck.model.evidence import Holder, WaitTarget
from lightning_hangcheck.probes.proc.files import read_proc
from lightning_hangcheck.probes.proc.vitals import vitals
from lightning_hangcheck.probes.stacks.py_spy import (
    LONG_VALUES,
    PySpyFailed,
    PySpyLate,
    find_py_spy,
)
from lightning_hangcheck.probes.stacks.unpaused import read_threads
from lightning_hangcheck.probes.waits.system_calls import ABSOLUTE, CALLS, RESTART
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.evidence import ProcessStack, ThreadState
    from lightning_hangcheck.probes.waits.descriptors import Descriptors, Opened
    from lightning_hangcheck.probes.waits.file_locks import FileLock


class Library(NamedTuple):
    """One that polls for a lock file.

    Attributes:
        name: For the target's call.
        polls: End of the path of the file in which it polls.
        caller: The same of the one that has the lock's path in a variable.
        variable: Its name.
        below: What is appended to it.
    """

    name: str
    polls: str
    caller: str
    variable: str
    below: str = ""


LIBRARIES = (
    Library("filelock", "/filelock/_api.py", "/filelock/_api.py", "lock_filename"),  # 3.0 to 4.2
    Library(
        "baton.wait",  # torch's lock on the build of an extension, of 1.0 to 2.13
        "/torch/utils/file_baton.py",
        "/torch/utils/cpp_extension.py",
        "build_directory",
        "/lock",
    ),
)
READ_LIMIT_S = 0.2
LONGEST_RECORD = 1024


def polled_lock(stack: ProcessStack, time_limit_s: float) -> WaitTarget | None:
    """Tell which lock the main thread polls for.

    Only where the stack shows that it stands in one of `LIBRARIES` does this ask py-spy for
    variables, and of these it keeps one: the path, a variable of that library.

    Args:
        stack: Just taken.
        time_limit_s: Seconds.

    Returns:
        None where the thread polls for no lock; a target without a name where the path is not to be
        had. Its holder only where the lock file itself names one (a soft lock) that is alive.
    """
    frames = stack.threads[0].frames if stack.threads else ()
    polled = (one for one in LIBRARIES if any(frame.file.endswith(one.polls) for frame in frames))
    library = next(polled, None)
    if library is None:
        return None
    path = _path(library, stack.pid, time_limit_s)
    return WaitTarget(
        call=library.name, kind="lock", name=path, holders=_written_in(stack.pid, path)
    )


def _path(library: Library, pid: int, time_limit_s: float) -> str:
    program = find_py_spy()
    if program is None or time_limit_s <= 0:
        return ""
    try:
        threads = read_threads(program, pid, time_limit_s, LONG_VALUES)
    except (PySpyFailed, PySpyLate, msgspec.MsgspecError):
        return ""
    shown = (
        local.repr
        for thread in threads
        if thread.os_thread_id == pid
        for frame in thread.frames
        if frame.filename.endswith(library.caller)
        for local in frame.locals or ()
        if local.name == library.variable and local.repr is not None
    )
    path = _unquoted(next(shown, ""))
    return path and path + library.below


def _unquoted(text: str) -> str:
    """Read a text as py-spy shows it: in double quotes; cut short, it has none at its end."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) and value.startswith("/") else ""


def _written_in(pid: int, path: str) -> tuple[Holder, ...]:
    """Read who holds a soft lock: its file has the pid and the host, a line each."""
    if not path:
        return ()
    try:
        text = within(READ_LIMIT_S, lambda: _read(Path(f"/proc/{pid}/root{path}")))
    except (NoAnswer, OSError):
        return ()
    written, _, rest = text.partition("\n")
    if not written.isdecimal() or rest.partition("\n")[0] != socket.gethostname():
        return ()
    holder = vitals(int(written))
    return () if holder is None else (Holder(pid=int(written), cpu_s=holder.cpu_s),)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(LONGEST_RECORD).decode(errors="replace")


INODE = re.compile(rb"^ino:\s*(\d+)$", re.MULTILINE)


def polled_file(
    thread: ThreadState, pid: int, descriptors: Descriptors, locks: Sequence[FileLock]
) -> tuple[WaitTarget, tuple[int, ...]] | None:
    """Tell which file a sleeping main thread has open that another process keeps locked.

    No proof that it sleeps for that: only a process of the job that has the same file open, and
    locked for itself alone, counts.

    Args:
        thread: The main thread.
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
