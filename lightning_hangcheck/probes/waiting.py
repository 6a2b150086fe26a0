"""What a blocked thread waits for: its call's arguments, read as files, sockets and children."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.model.evidence import WaitTarget
from lightning_hangcheck.probes.call_table import CALLS, POLL, RESTART, Call
from lightning_hangcheck.probes.memory import read_memory, read_path
from lightning_hangcheck.probes.proc_file import read_proc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.evidence import TargetKind

MOST_DESCRIPTORS = 8
"""Of a call that waits for several: a program that waits for more serves others, so it is not said
for whom it waits."""
WAITING_FCNTL = frozenset({7, 38})  # F_SETLKW, F_OFD_SETLKW: include/uapi/asm-generic/fcntl.h
POLLED = struct.Struct("=ihh")  # struct pollfd
FUTEX_WAITS = frozenset({0, 9})  # FUTEX_WAIT, FUTEX_WAIT_BITSET: include/uapi/linux/futex.h
FUTEX_PRIVATE, FUTEX_COMMAND = 128, 127
WAIT_FOR_PID = 1  # P_PID: include/uapi/linux/wait.h
EPOLL_TARGET = re.compile(rb"^tfd:\s*(\d+)", re.MULTILINE)


def waits_for(
    pid: int, number: int, arguments: tuple[int, ...], wchan: str = ""
) -> tuple[WaitTarget, ...]:
    """Tell what a system call in progress waits for, as far as its own process shows it.

    About 10 microseconds for a descriptor, 100 where the process's memory must be read.

    Args:
        pid: The process.
        number: Of the call.
        arguments: Its six.
        wchan: Kernel function that the thread sleeps in, where it is shown: tells a FIFO from a
            file without asking its file system, which may be what does not answer.

    Returns:
        Nothing for a call that is not known or waits for a time.
    """
    call = CALLS.get(number)
    if call is not None and call.name == RESTART and "poll" in wchan:
        call = POLL
    if call is None or len(arguments) < 6:
        return ()
    if call.shape == "descriptor":
        return _of_descriptor_call(pid, call.name, arguments, wchan)
    if call.shape == "path":
        path = _absolute(pid, read_path(pid, arguments[call.position]))
        return (WaitTarget(call=call.name, kind=_file_or_fifo(wchan), name=path),)
    if call.shape == "child":
        return _child(call, arguments)
    if call.shape == "futex":
        return _futex(arguments)
    described = (describe(pid, one) for one in _descriptors(pid, call, arguments))
    return tuple(WaitTarget(call=call.name, kind=kind, name=name) for kind, name in described)


def describe(pid: int, descriptor: int) -> tuple[TargetKind, str]:
    """Tell what a descriptor of a process is, and its name; asks no file system, so never blocks.

    A socket's name is ``socket:[INODE]`` here.
    """
    try:
        name = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return "other", ""
    if name.startswith("pipe:["):
        return "pipe", name
    if name.startswith("socket:["):
        return "socket", name
    if name.startswith(("/dev/pts/", "/dev/tty")):
        return "terminal", name
    is_file = name.startswith("/") and not name.startswith(("/dev/", "/proc/"))
    return ("file", name) if is_file else ("other", name)


def _of_descriptor_call(
    pid: int, name: str, arguments: tuple[int, ...], wchan: str
) -> tuple[WaitTarget, ...]:
    kind, target = describe(pid, arguments[0])
    if kind == "file":
        kind = _file_or_fifo(wchan)
    if name == "flock":
        kind = "lock"
    elif name == "fcntl":
        if arguments[1] not in WAITING_FCNTL:
            return ()
        kind = "lock"
    return (WaitTarget(call=name, kind=kind, name=target),)


def _file_or_fifo(wchan: str) -> TargetKind:
    """``pipe_read``, ``pipe_write`` (``anon_`` since 6.14) and, in open, ``wait_for_partner``."""
    return "fifo" if "pipe" in wchan or wchan == "wait_for_partner" else "file"


def _child(call: Call, arguments: tuple[int, ...]) -> tuple[WaitTarget, ...]:
    """A child that is named; waiting for any child names none."""
    if call.name == "waitid" and arguments[0] != WAIT_FOR_PID:
        return ()
    child = _signed(arguments[1] if call.name == "waitid" else arguments[0])
    return (WaitTarget(call=call.name, kind="process", name=str(child)),) if child > 0 else ()


def _futex(arguments: tuple[int, ...]) -> tuple[WaitTarget, ...]:
    """A wait without a time limit for a word that only this process can change."""
    operation, limit = arguments[1], arguments[3]
    endless = operation & FUTEX_COMMAND in FUTEX_WAITS and limit == 0
    if not endless or not operation & FUTEX_PRIVATE:
        return ()
    return (WaitTarget(call="futex", kind="futex", name=f"{arguments[0]:#x}"),)


def _descriptors(pid: int, call: Call, arguments: tuple[int, ...]) -> Iterable[int]:
    if call.shape == "poll":
        if arguments[1] > MOST_DESCRIPTORS:
            return ()
        data = read_memory(pid, arguments[0], arguments[1] * POLLED.size)
        whole = data[: len(data) // POLLED.size * POLLED.size]
        return [one for one, _, _ in POLLED.iter_unpack(whole) if one >= 0]
    if call.shape == "epoll":
        try:
            watched = read_proc(f"/proc/{pid}/fdinfo/{arguments[0]}")
        except OSError:
            return ()
        return _few([int(one) for one in EPOLL_TARGET.findall(watched)])
    return _selected(pid, arguments) if call.shape == "select" else ()


def _selected(pid: int, arguments: tuple[int, ...]) -> list[int]:
    """Read the three sets of select; 1,024 descriptors are all that such a set can have."""
    size = (min(arguments[0], 1024) + 7) // 8
    sets = [read_memory(pid, address, size) for address in arguments[1:4] if address]
    numbers = {
        8 * byte + bit
        for chosen in sets
        for byte, value in enumerate(chosen)
        for bit in range(8)
        if value >> bit & 1
    }
    return _few(sorted(numbers))


def _few(descriptors: list[int]) -> list[int]:
    return descriptors if len(descriptors) <= MOST_DESCRIPTORS else []


def _absolute(pid: int, path: str) -> str:
    if not path or path.startswith("/"):
        return path
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink() / path)
    except OSError:
        return path


def _signed(value: int) -> int:
    """Read an argument as the C int that it is."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
