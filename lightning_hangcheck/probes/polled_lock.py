"""The lock file that a library polls for: the kernel sees only sleep, and no open file."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.model.evidence import Holder, WaitTarget
from lightning_hangcheck.probes.guard import NoAnswer, within
from lightning_hangcheck.probes.py_spy import (
    LONG_VALUES,
    PySpyFailed,
    PySpyLate,
    dump,
    find_py_spy,
)
from lightning_hangcheck.probes.vitals import vitals

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessStack

LIBRARY = "/filelock/_api.py"
PATH = "lock_filename"
"""The local variable that has the path, in filelock 3.0 to 4.2."""
READ_LIMIT_S = 0.2
LONGEST_RECORD = 1024


class _Local(msgspec.Struct):
    name: str
    repr: str | None = None


class _Frame(msgspec.Struct):
    filename: str
    locals: list[_Local] | None = None


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    os_thread_id: int | None = None


def polled_lock(
    stack: ProcessStack, time_limit_s: float, *, nonblocking: bool = False
) -> WaitTarget | None:
    """Tell which lock the main thread polls for.

    Only where the stack shows that it stands in filelock does this ask py-spy for variables, and of
    these it keeps one: the path, a variable of that library.

    Args:
        stack: Just taken.
        time_limit_s: Seconds.
        nonblocking: Don't pause the process for it.

    Returns:
        None where the thread polls for no lock; a target without a name where the path is not to be
        had. Its holder only where the lock file itself names one (a soft lock) that is alive.
    """
    frames = stack.threads[0].frames if stack.threads else ()
    if not any(frame.file.endswith(LIBRARY) for frame in frames):
        return None
    path = _path(stack.pid, time_limit_s, nonblocking)
    return WaitTarget(call="filelock", kind="lock", name=path, holders=_written_in(stack.pid, path))


def _path(pid: int, time_limit_s: float, nonblocking: bool) -> str:
    program = find_py_spy()
    if program is None or time_limit_s <= 0:
        return ""
    try:
        data = dump(program, pid, time_limit_s, nonblocking=nonblocking, values=LONG_VALUES)
        threads = msgspec.json.decode(data, type=list[_Thread])
    except (PySpyFailed, PySpyLate, msgspec.MsgspecError):
        return ""
    shown = (
        local.repr
        for thread in threads
        if thread.os_thread_id == pid
        for frame in thread.frames
        if frame.filename.endswith(LIBRARY)
        for local in frame.locals or ()
        if local.name == PATH and local.repr is not None
    )
    return _unquoted(next(shown, ""))


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
