"""May we read this process, and if not, what would allow it?

Decided by the kernel's own answer and by facts of the machine, never by the text of an error.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from lightning_hangcheck.probes.proc.files import read_proc

CAP_SYS_PTRACE = 19  # include/uapi/linux/capability.h


class Refusal(NamedTuple):
    """Why a process cannot be read, and what to do, if anything: both without a full stop."""

    why: str
    remedy: str = ""


CONTAINER = Refusal(
    "this container may not read processes",
    "start it with docker run --cap-add=SYS_PTRACE "
    "(Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])",
)


class Access(Struct, frozen=True, kw_only=True):
    """What decides whether one process may read another.

    Attributes:
        own_user: Our effective user id.
        their_user: The real user id of the process.
        capable: We have CAP_SYS_PTRACE.
        yama_scope: /proc/sys/kernel/yama/ptrace_scope; 0 where the kernel has no Yama.
    """

    own_user: int
    their_user: int
    capable: bool
    yama_scope: int


def why_refused(pid: int) -> Refusal | None:
    """Ask the kernel whether we may read a process.

    /proc/PID/syscall is behind the same check as ptrace and process_vm_readv (ptrace(2),
    PTRACE_MODE_ATTACH), Yama's rules included.

    Returns:
        None where we may, or where there is no such process any more; else why not and what to do.
    """
    try:
        read_proc(f"/proc/{pid}/syscall")
    except PermissionError:
        return explain(read_access(pid))
    except OSError:
        return None
    return None


@cache
def why_filtered() -> Refusal | None:
    """Ask whether a seccomp filter keeps us from reading any memory, even our own.

    Docker's default filter did before version 19.03, and on kernels before 4.8.

    Returns:
        None where it does not; else what to do.
    """
    library = ctypes.CDLL(None)
    refused: int = library.process_vm_readv(os.getpid(), None, 0, None, 0, 0)
    return CONTAINER if refused else None


def explain(access: Access) -> Refusal:
    """Say why reading is refused, and what would allow it."""
    scope = f"kernel.yama.ptrace_scope is {access.yama_scope}"
    if access.own_user not in (0, access.their_user):
        why = f"it belongs to user id {access.their_user}, we are user id {access.own_user}"
        return Refusal(why, "run as that user, or as root")
    if access.yama_scope >= 3:
        remedy = "set it to 1 in /etc/sysctl.d and boot again"
        return Refusal(f"the kernel lets nobody read it ({scope})", remedy)
    if access.yama_scope == 2 and not access.capable:
        remedy = "run as root, or: sudo sysctl -w kernel.yama.ptrace_scope=1"
        return Refusal(f"the kernel wants CAP_SYS_PTRACE ({scope})", remedy)
    if access.yama_scope == 1 and not access.capable:
        remedy = "start the job with hangcheck run, or: sudo sysctl -w kernel.yama.ptrace_scope=0"
        return Refusal(f"the kernel lets only its ancestors read it ({scope})", remedy)
    if access.own_user == 0 and not access.capable:
        return CONTAINER
    return Refusal("it is protected: it changed its user, or is not dumpable", "run as root")


def read_access(pid: int) -> Access:
    """Collect the facts; what cannot be read counts as absent."""
    own = _status_fields("self")
    theirs = _status_fields(str(pid))
    return Access(
        own_user=os.geteuid(),
        their_user=int(theirs.get("Uid", str(os.geteuid())).split()[0]),
        capable=bool(int(own.get("CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1),
        yama_scope=_yama_scope(),
    )


def _status_fields(pid: str) -> dict[str, str]:
    try:
        lines = read_proc(f"/proc/{pid}/status").decode(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _yama_scope() -> int:
    try:
        return int(read_proc("/proc/sys/kernel/yama/ptrace_scope"))
    except OSError:
        return 0
