"""What a blocked thread waits for: its call's arguments, read as files, sockets and children.

Calls are those in which threads are found blocked, by their numbers of Linux 6.x
(arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h). Where an argument is an
address, a few bytes of the process's memory say what it points to.
"""

from __future__ import annotations

import os
import re
import struct
from typing import TYPE_CHECKING, Literal, NamedTuple

from lightning_hangcheck.look.proc import (
    descendants,
    our_id_of_child,
    read_link,
    read_memory,
    read_proc,
)
from lightning_hangcheck.model.evidence import WaitTarget
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.evidence import TargetKind

Shape = Literal["descriptor", "path", "poll", "select", "epoll", "child", "futex", "signal", "time"]


class Call(NamedTuple):
    """A system call: what tells what it waits for, and the position of that argument."""

    name: str
    shape: Shape
    position: int = 0


RESTART = "restart_syscall"
"""What a call with a time limit becomes once a tracer has stopped the thread; arguments stay."""
POLL = Call("poll", "poll")
_CALLS = (
    *(
        Call(name, "descriptor")
        for name in (
            *("read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev"),
            *("sendfile", "fsync", "fdatasync", "syncfs", "getdents64", "flock", "fcntl"),
            *("connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg"),
        )
    ),
    *(Call(name, "path") for name in ("open", "stat", "lstat", "mkdir", "unlink", "rename")),
    *(Call(name, "path", 1) for name in ("openat", "newfstatat", "statx", "mkdirat", "unlinkat")),
    *(POLL, Call("ppoll", "poll")),
    *(Call(name, "select") for name in ("select", "pselect6")),
    *(Call(name, "epoll") for name in ("epoll_wait", "epoll_pwait")),
    *(Call(name, "child") for name in ("wait4", "waitid")),
    Call("futex", "futex"),
    *(Call(name, "signal") for name in ("pause", "rt_sigsuspend", "rt_sigtimedwait")),
    *(Call(name, "time") for name in ("nanosleep", "clock_nanosleep", RESTART)),
)
POLLING = frozenset(call.name for call in _CALLS if call.shape in ("poll", "select", "epoll"))
"""Calls that wait for any of several things."""
# fmt: off
_NUMBERS = {
    "x86_64": {
        "read": 0, "write": 1, "open": 2, "stat": 4, "lstat": 6, "poll": 7, "pread64": 17,
        "pwrite64": 18, "readv": 19, "writev": 20, "select": 23, "nanosleep": 35, "sendfile": 40,
        "connect": 42, "accept": 43, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47,
        "wait4": 61, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75, "rename": 82,
        "mkdir": 83, "unlink": 87, "futex": 202, "pause": 34,
        "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "getdents64": 217, "clock_nanosleep": 230,
        "restart_syscall": 219, "epoll_wait": 232, "waitid": 247, "openat": 257, "mkdirat": 258,
        "newfstatat": 262,
        "unlinkat": 263, "pselect6": 270, "ppoll": 271, "epoll_pwait": 281, "accept4": 288,
        "preadv": 295, "pwritev": 296, "syncfs": 306, "statx": 332,
    },
    "aarch64": {
        "epoll_pwait": 22, "fcntl": 25, "flock": 32, "mkdirat": 34, "unlinkat": 35, "openat": 56,
        "getdents64": 61, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67,
        "pwrite64": 68, "preadv": 69, "pwritev": 70, "sendfile": 71, "pselect6": 72, "ppoll": 73,
        "newfstatat": 79, "fsync": 82, "fdatasync": 83, "waitid": 95, "futex": 98,
        "rt_sigsuspend": 133, "rt_sigtimedwait": 137,
        "nanosleep": 101, "clock_nanosleep": 115, "restart_syscall": 128, "accept": 202,
        "connect": 203, "sendto": 206,
        "recvfrom": 207, "sendmsg": 211, "recvmsg": 212, "accept4": 242, "wait4": 260,
        "syncfs": 267, "statx": 291,
    },
}
# fmt: on


def calls_of(machine: str) -> dict[int, Call]:
    """Return the calls of an architecture (``uname -m``) by number, none of one unknown here."""
    numbers = _NUMBERS.get(machine, {})
    return {numbers[call.name]: call for call in _CALLS if call.name in numbers}


CALLS = calls_of(os.uname().machine)

LONGEST_PATH = 4096  # PATH_MAX of the kernel
MOST_DESCRIPTORS = 8
"""Of a call that waits for several: a program that waits for more serves others, so it is not said
for whom it waits."""
WAITING_FCNTL = frozenset({7, 38})  # F_SETLKW, F_OFD_SETLKW: include/uapi/asm-generic/fcntl.h
POLLED = struct.Struct("=ihh")  # struct pollfd
FUTEX_WAITS = frozenset({0, 9})  # FUTEX_WAIT, FUTEX_WAIT_BITSET: include/uapi/linux/futex.h
FUTEX_PRIVATE, FUTEX_COMMAND = 128, 127
FUTEX_WAIT_BITSET = 9  # until a monotonic time, unless FUTEX_CLOCK_REALTIME is among the flags
LATEST_NS = (1 << 63) - 1  # the kernel's own clock goes no further (ktime_t)
MONOTONIC, ABSOLUTE = 1, 1  # CLOCK_MONOTONIC, TIMER_ABSTIME: include/uapi/linux/time.h
TIMESPEC = struct.Struct("=qq")  # struct __kernel_timespec
WAIT_FOR_PID = 1  # P_PID: include/uapi/linux/wait.h
EPOLL_TARGET = re.compile(rb"^tfd:\s*(\d+)", re.MULTILINE)
PIDFD, EVENTFD = "anon_inode:[pidfd]", "anon_inode:[eventfd]"
EVENT = "eventfd:"
OF_PROCESS = re.compile(rb"^Pid:\s*([1-9]\d*)$", re.MULTILINE)
OF_EVENT = re.compile(rb"^eventfd-id:\s*(\d+)$", re.MULTILINE)  # since Linux 5.2


def waits_for(
    pid: int, number: int, arguments: tuple[int, ...], wchan: str = ""
) -> tuple[WaitTarget, ...]:
    """Tell what a call in progress, by its six arguments, waits for, as its process shows it.

    About 10 microseconds for a descriptor, 100 where memory must be read. The kernel function that
    the thread sleeps in tells a FIFO from a file without asking its file system, which may be what
    does not answer. ``time`` is among what is returned where the call has a time limit.
    """
    call = CALLS.get(number)
    if call is not None and call.name == RESTART and "poll" in wchan:
        call = POLL
    if call is None or len(arguments) < 6:
        return ()
    # ``pipe_read``, ``pipe_write`` (``anon_`` since 6.14) and, in open, ``wait_for_partner``
    fifo = "pipe" in wchan or wchan == "wait_for_partner"
    if call.shape == "descriptor":
        kind, name = describe(pid, arguments[0])
        kind = "fifo" if kind == "file" and fifo else kind
        if call.name == "fcntl" and arguments[1] not in WAITING_FCNTL:
            return ()
        kind = "lock" if call.name in ("flock", "fcntl") else kind
        return (WaitTarget(call=call.name, kind=kind, name=name),)
    if call.shape == "path":
        text = read_memory(pid, arguments[call.position], LONGEST_PATH).partition(b"\0")[0]
        path = text.decode(errors="replace")
        folder = read_link(f"/proc/{pid}/cwd") if path and not path.startswith("/") else ""
        path = os.path.join(folder, path)  # noqa: PTH118 - nothing of a path is to be changed
        return (WaitTarget(call=call.name, kind="fifo" if fifo else "file", name=path),)
    if call.shape == "child":  # one child, or any of them, of a group of them too
        named = _signed(arguments[1] if call.name == "waitid" else arguments[0])
        if named > 0 and (call.name != "waitid" or arguments[0] == WAIT_FOR_PID):
            child = our_id_of_child(pid, named)
            children = [child] if child else []
        else:
            children = [one.pid for one in descendants(pid) if one.parent_pid == pid]
        if len(children) > MOST_DESCRIPTORS:
            return ()
        return tuple(WaitTarget(call=call.name, kind="process", name=str(one)) for one in children)
    if call.shape == "futex":  # a word of memory, which others may share, or until a time
        operation, limit = arguments[1], arguments[3]
        if operation & FUTEX_COMMAND not in FUTEX_WAITS:
            return ()
        if limit:
            return (WaitTarget(call="futex", kind="time"),)
        of_word: TargetKind = "futex" if operation & FUTEX_PRIVATE else "shared"
        return (WaitTarget(call="futex", kind=of_word, name=f"{arguments[0]:#x}"),)
    if call.shape == "signal":
        return (WaitTarget(call=call.name, kind="other"), *_time_limit(call, arguments))
    described = (describe(pid, one) for one in _descriptors(pid, call, arguments))
    found = tuple(WaitTarget(call=call.name, kind=kind, name=name) for kind, name in described)
    return (*found, *_time_limit(call, arguments))


def wakes_at(pid: int, number: int, arguments: tuple[int, ...]) -> int | None:
    """Read until when a thread sleeps, as Python 3.11 and later do: until a monotonic time, in ns.

    So do ``time.sleep`` and all waits of `threading` that have a time limit. None for all other
    calls, and where the thread has left it meanwhile and other things are in its memory.
    """
    call = CALLS.get(number)
    if call is None or len(arguments) < 6:
        return None
    clock, flags, address = arguments[:3]
    if call.name == "futex":
        clock, flags, address = MONOTONIC, ABSOLUTE, arguments[3]
        if arguments[1] & ~FUTEX_PRIVATE != FUTEX_WAIT_BITSET:
            return None
    elif call.name != "clock_nanosleep":
        return None
    if clock != MONOTONIC or flags != ABSOLUTE or not address:
        return None
    data = read_memory(pid, address, TIMESPEC.size)
    if len(data) < TIMESPEC.size:
        return None
    seconds, nanoseconds = TIMESPEC.unpack(data)
    wakes_ns = int(seconds) * NANOSECONDS + int(nanoseconds)
    return wakes_ns if seconds >= 0 and wakes_ns <= LATEST_NS else None


def describe(pid: int, descriptor: int) -> tuple[TargetKind, str]:
    """Tell what a descriptor of a process is, and its name; asks no file system, so never blocks.

    A socket's name is ``socket:[INODE]`` here. One that stands for a process becomes readable when
    that ends.
    """
    name = read_link(f"/proc/{pid}/fd/{descriptor}")
    if name.startswith("pipe:["):
        return "pipe", name
    if name.startswith("socket:["):
        return "socket", name
    if name.startswith(("/dev/pts/", "/dev/tty")):
        return "terminal", name
    if name == PIDFD and (found := OF_PROCESS.search(descriptor_facts(pid, descriptor))):
        return "process", found[1].decode()
    if name == EVENTFD:
        return "other", event_behind(pid, descriptor) or name
    is_file = name.startswith("/") and not name.startswith(("/dev/", "/proc/"))
    return ("file", name) if is_file else ("other", name)


def event_behind(pid: int, descriptor: int) -> str:
    """Name an eventfd, as one and the same in all processes that have it; empty if unknown."""
    found = OF_EVENT.search(descriptor_facts(pid, descriptor))
    return f"{EVENT}[{found[1].decode()}]" if found is not None else ""


def descriptor_facts(pid: int, descriptor: int) -> bytes:
    """Read what the kernel tells of a descriptor (proc_pid_fdinfo(5)); none if it is gone."""
    try:
        return read_proc(f"/proc/{pid}/fdinfo/{descriptor}")
    except OSError:
        return b""


def _time_limit(call: Call, arguments: tuple[int, ...]) -> tuple[WaitTarget, ...]:
    """The calls of poll and epoll take milliseconds, none if negative; others an address."""
    limits = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
    addresses = {"ppoll": 2, "select": 4, "pselect6": 4, "rt_sigtimedwait": 2}
    limited = (
        call.shape == "time"
        or (call.name in limits and _signed(arguments[limits[call.name]]) >= 0)
        or (call.name in addresses and arguments[addresses[call.name]] != 0)
    )
    return (WaitTarget(call=call.name, kind="time"),) if limited else ()


def _descriptors(pid: int, call: Call, arguments: tuple[int, ...]) -> Iterable[int]:
    if call.shape == "poll":
        if arguments[1] > MOST_DESCRIPTORS:
            return ()
        data = read_memory(pid, arguments[0], arguments[1] * POLLED.size)
        whole = data[: len(data) // POLLED.size * POLLED.size]
        return [one for one, _, _ in POLLED.iter_unpack(whole) if one >= 0]
    if call.shape == "epoll":
        watched = EPOLL_TARGET.findall(descriptor_facts(pid, arguments[0]))
        return [int(one) for one in watched] if len(watched) <= MOST_DESCRIPTORS else []
    if call.shape != "select":
        return ()
    # three sets; 1,024 descriptors are all that each can have
    size = (min(arguments[0], 1024) + 7) // 8
    sets = [read_memory(pid, address, size) for address in arguments[1:4] if address]
    numbers = {
        8 * byte + bit
        for chosen in sets
        for byte, value in enumerate(chosen)
        for bit in range(8)
        if value >> bit & 1
    }
    return sorted(numbers) if len(numbers) <= MOST_DESCRIPTORS else []


def _signed(value: int) -> int:
    """Read an argument as the C int that it is."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
