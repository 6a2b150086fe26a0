"""Reading the exit code of a process that is not our child."""

from __future__ import annotations

import fcntl
import os
import struct

from lightning_hangcheck.probes.stat_line import read_stat

# include/uapi/linux/pidfd.h: ioctl PIDFD_GET_INFO (0xFF, 11) of struct pidfd_info, first 64 bytes;
# the mask asks for PIDFD_INFO_EXIT, which Linux 6.15 and later answer once the process is reaped.
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
INFO_BYTES = 64
EXIT_CODE_AT = 60


def code_of_zombie(pid: int, started_ticks: int, *, shown: bool) -> int | None:
    """Read the exit code of a process that its parent has not reaped yet.

    Args:
        pid: The process.
        started_ticks: When it started: another process may have its pid by now.
        shown: The kernel shows us protected fields of this process; otherwise a code of 0 says
            nothing, as the kernel writes 0 for what it hides.

    Returns:
        As subprocess gives it; None where it cannot be known.
    """
    try:
        line = read_stat(pid)
    except OSError:
        return None
    if line.state not in "ZX" or line.started_ticks != started_ticks:
        return None
    if line.exit_status == 0 and not shown:
        return None
    return os.waitstatus_to_exitcode(line.exit_status)


def code_of_reaped(pidfd: int) -> int | None:
    """Read the exit code of a process that its parent has reaped; None on older kernels."""
    info = bytearray(INFO_BYTES)
    struct.pack_into("=Q", info, 0, PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("=Q", info, 0)
    (status,) = struct.unpack_from("=i", info, EXIT_CODE_AT)
    return os.waitstatus_to_exitcode(status) if mask & PIDFD_INFO_EXIT else None
