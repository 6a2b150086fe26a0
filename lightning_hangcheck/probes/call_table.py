"""System calls in which threads are found blocked, by number, and where their arguments point.

Numbers of Linux 6.x: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

Shape = Literal["descriptor", "path", "poll", "select", "epoll", "child", "futex", "nothing"]


class Call(NamedTuple):
    """A system call.

    Attributes:
        shape: What tells what it waits for: a descriptor, the path in its memory, and so on.
        position: Of that argument.
    """

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
    *(POLL, POLL._replace(name="ppoll")),
    *(Call(name, "select") for name in ("select", "pselect6")),
    *(Call(name, "epoll") for name in ("epoll_wait", "epoll_pwait")),
    *(Call(name, "child") for name in ("wait4", "waitid")),
    Call("futex", "futex"),
    *(Call(name, "nothing") for name in ("nanosleep", "clock_nanosleep", RESTART)),
)
# fmt: off
_NUMBERS = {
    "x86_64": {
        "read": 0, "write": 1, "open": 2, "stat": 4, "lstat": 6, "poll": 7, "pread64": 17,
        "pwrite64": 18, "readv": 19, "writev": 20, "select": 23, "nanosleep": 35, "sendfile": 40,
        "connect": 42, "accept": 43, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47,
        "wait4": 61, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75, "rename": 82,
        "mkdir": 83, "unlink": 87, "futex": 202, "getdents64": 217, "clock_nanosleep": 230,
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
        "nanosleep": 101, "clock_nanosleep": 115, "restart_syscall": 128, "accept": 202,
        "connect": 203, "sendto": 206,
        "recvfrom": 207, "sendmsg": 211, "recvmsg": 212, "accept4": 242, "wait4": 260,
        "syncfs": 267, "statx": 291,
    },
}
# fmt: on


def calls_of(machine: str) -> dict[int, Call]:
    """Return the calls of an architecture by number, none of one that is not known here.

    Args:
        machine: As ``uname -m`` says it.
    """
    numbers = _NUMBERS.get(machine, {})
    return {numbers[call.name]: call for call in _CALLS if call.name in numbers}


CALLS = calls_of(os.uname().machine)
