"""How processes of others end: noticed at once, with the exit code where the kernel tells it.

It tells the parent; what it tells others is read here.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lightning_hangcheck.look.proc import has_ended, io_bytes, vitals

if TYPE_CHECKING:
    from collections.abc import Sequence

# include/uapi/linux/pidfd.h: ioctl PIDFD_GET_INFO (0xFF, 11) of struct pidfd_info, first 64 bytes;
# the mask asks for PIDFD_INFO_EXIT, which Linux 6.15 and later answer once the process is reaped.
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
INFO_BYTES = 64
EXIT_CODE_AT = 60
POLL_S = 0.05


class Exited(Struct, frozen=True, kw_only=True):
    """A watched process has ended, as was noticed at that monotonic time.

    ``exit_code`` as Python's subprocess gives it; None where it was reaped before, or is not shown.
    """

    pid: int
    exit_code: int | None
    seen_ns: int


class _Watched(NamedTuple):
    """A process that has not ended, with its pidfd if it has one; is its code shown to us?"""

    started_ticks: int
    descriptor: int | None
    code_shown: bool


class ExitWatcher:
    """Watches processes that need not be our children.

    The exit code is read from the zombie before its parent reaps it; on Linux 6.15 and later also
    afterwards. Where the kernel gives no pidfd (before 5.3, or a container's filter), processes are
    looked at twenty times a second.
    """

    def __init__(self, *, use_pidfd: bool = True) -> None:
        self._use_pidfd = use_pidfd and hasattr(os, "pidfd_open")
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}
        self._missed: list[Exited] = []

    def watch(self, pid: int) -> None:
        """Watch a process; one that is gone already is reported by the next `wait`."""
        if pid in self._watched:
            return
        seen = vitals(pid)
        if seen is None:
            self._missed.append(Exited(pid=pid, exit_code=None, seen_ns=time.monotonic_ns()))
            return
        descriptor = None
        if self._use_pidfd:
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
        if descriptor is not None:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._watched[pid] = _Watched(seen.started_ticks, descriptor, io_bytes(pid) is not None)

    def wait(self, timeout: float) -> list[Exited]:
        """Wait so many seconds until a watched process has ended, and forget those that have."""
        deadline = time.monotonic() + timeout
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            polled = any(watched.descriptor is None for watched in self._watched.values())
            patience = 0 if self._missed else min(remaining, POLL_S) if polled else remaining
            ready = {descriptor for descriptor, _ in self._epoll.poll(patience)}
            exited, self._missed = self._missed, []
            for pid, watched in list(self._watched.items()):
                if watched.descriptor is not None:
                    gone = watched.descriptor in ready
                else:
                    seen = vitals(pid)
                    gone = (
                        seen is None or seen.has_ended or not seen.is_still(watched.started_ticks)
                    )
                exited += [self._forget(pid)] if gone else []
            if exited or remaining <= 0:
                return exited

    def close(self) -> None:
        """Forget all processes."""
        for watched in self._watched.values():
            if watched.descriptor is not None:
                os.close(watched.descriptor)
        self._watched.clear()
        self._epoll.close()

    def _forget(self, pid: int) -> Exited:
        watched, line = self._watched.pop(pid), vitals(pid)
        seen_ns, code = time.monotonic_ns(), None
        # another process may have its pid by now, and the kernel may hide the code as 0
        if line is not None and line.has_ended and line.started_ticks == watched.started_ticks:
            shown = line.exit_status or watched.code_shown
            code = os.waitstatus_to_exitcode(line.exit_status) if shown else None
        if watched.descriptor is not None:
            code = _code_of_reaped(watched.descriptor) if code is None else code
            self._epoll.unregister(watched.descriptor)
            os.close(watched.descriptor)
        return Exited(pid=pid, exit_code=code, seen_ns=seen_ns)


def _code_of_reaped(pidfd: int) -> int | None:
    """The exit code of a process that its parent has reaped; None on older kernels."""
    info = bytearray(INFO_BYTES)
    struct.pack_into("=Q", info, 0, PIDFD_INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        if struct.unpack_from("=Q", info, 0)[0] & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(*struct.unpack_from("=i", info, EXIT_CODE_AT))
    return None


def still_running(pids: Sequence[int], time_limit_s: float) -> tuple[int, ...]:
    """Return which of these processes still run after so many seconds, or as soon as none does."""
    deadline = time.monotonic() + time_limit_s
    while left := tuple(pid for pid in pids if not has_ended(pid)):
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    return left
