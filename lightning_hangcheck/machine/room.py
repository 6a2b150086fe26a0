"""Whether there is room for threads of ours, with enough left for what training starts after us.

The kernel refuses a thread beyond a limit, and the program that meets the refusal may abort:
torch's worker server does, and so may training whose last thread we took. So nothing of ours is
started near a limit.
"""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.machine.control_groups import GROUPS, groups_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LEFT_THREADS = 64
"""For each rank, besides its pools: autograd's, the backend's (three with gloo, some ten with
NCCL), loggers', and some 16 DataLoader workers with two or three each."""
POOLS = 2
"""torch's pools of threads in a rank: within an operation, and between operations."""
LEFT_DESCRIPTORS = 128
"""For each rank: a DataLoader keeps some for each worker and tensor, gloo and NCCL some a peer."""
OURS_OF_ADDRESS_SPACE = 0.05
"""Share of the free address space, where that is limited, that our threads may take."""
ARENA_BYTES = 128 * 2**20
"""What glibc's malloc reserves for a thread's first allocation (malloc/arena.c: twice HEAP_MAX)."""
DEFAULT_STACK_BYTES = 8 * 2**20
DESCRIPTORS = 4
"""Of ours in a rank: page, journal, stacks, the server's socket."""

_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h, PROC_PID_INIT_INO
_MAY_PASS = 1 << 21 | 1 << 24  # linux/capability.h: CAP_SYS_ADMIN, CAP_SYS_RESOURCE
_OWN_STATUS = Path("/proc/self/status")


class NoRoom(OSError):
    """A thread or process of ours was not started; the text says which limit is near."""


class Bound(NamedTuple):
    """A limit, in whatever it counts."""

    name: str
    limit: int
    used: int
    needed: int

    def __str__(self) -> str:
        taken = f"{self.name} is {self.limit}, in use are {self.used}"
        return f"{taken}, and {self.needed} should be free"


def require_room(threads: int, ranks: int = 1, groups: Path = GROUPS) -> None:
    """Look at every limit that so many threads count towards; 0.4 ms far from one.

    Args:
        threads: That we want to start.
        ranks: That start as many on this machine, and train.
        groups: Where control groups are mounted.

    Raises:
        NoRoom: After them too little would be left to training.
    """
    for bound in _bounds(threads, ranks, groups):
        if bound.limit - bound.used < bound.needed:
            raise NoRoom(str(bound))


def _bounds(threads: int, ranks: int, groups: Path) -> Iterator[Bound]:
    needed = ranks * (threads + LEFT_THREADS + POOLS * _pool_size())
    yield from _system_bounds(needed)
    yield from _group_bounds(needed, groups)
    yield from _user_bound(needed)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors != resource.RLIM_INFINITY:
        used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone, and at every start
        needed = DESCRIPTORS + LEFT_DESCRIPTORS
        yield Bound("the limit of open files (ulimit -n)", descriptors, used, needed)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        used = int(Path("/proc/self/statm").read_bytes().split()[0]) * mmap.PAGESIZE
        needed = round(threads * (_stack_bytes() + ARENA_BYTES) / OURS_OF_ADDRESS_SPACE)
        yield Bound("the limit of address space (ulimit -v)", space, used, needed)


def _system_bounds(needed: int) -> Iterator[Bound]:
    used = _all_threads()
    for name in ("threads-max", "pid_max"):
        limit = int(Path("/proc/sys/kernel", name).read_bytes())
        yield Bound(f"the kernel's {name}", limit, used, needed)


def _group_bounds(needed: int, groups: Path) -> Iterator[Bound]:
    for folder, _ in groups_of(os.getpid(), "pids", groups):
        try:
            limit = int((folder / "pids.max").read_bytes())
            used = int((folder / "pids.current").read_bytes())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        yield Bound("pids.max of the control group", limit, used, needed)


def _user_bound(needed: int) -> Iterator[Bound]:
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or _passes_user_limit():
        return
    used = _all_threads()  # as many at most, and read in one go
    if limit - used < needed:
        used = _threads_of_user(used)
    yield Bound("the user's limit of processes and threads (ulimit -u)", limit, used, needed)


def _passes_user_limit() -> bool:
    """Whether the kernel asks nothing of us (kernel/fork.c): root, or who may pass its limits."""
    if Path("/proc/self/uid_map").read_text().split()[:2] != ["0", "0"]:
        return False  # such rights count in the first user namespace alone
    return os.getuid() == 0 or bool(int(_status(_OWN_STATUS)["CapEff"], 16) & _MAY_PASS)


def _pool_size() -> int:
    """Threads of an OpenMP pool: as many as the machine has cores, unless somebody said."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdecimal() else os.cpu_count() or 1


def _all_threads() -> int:
    """Of the whole machine, whatever of it can be seen from here."""
    return int(Path("/proc/loadavg").read_bytes().split()[3].partition(b"/")[2])


def _threads_of_user(everybody: int) -> int:
    """Count this user's; everybody's where processes are hidden from us that may be this user's."""
    if Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE:
        return everybody
    user, found = str(os.getuid()), 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                status = _status(folder / "status")
            except OSError:  # it has ended
                continue
            if status["Uid"].split()[0] == user:
                found += int(status["Threads"])
    return found


def _status(file: Path) -> dict[str, str]:
    lines = file.read_text(errors="replace").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _stack_bytes() -> int:
    size, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return DEFAULT_STACK_BYTES if size == resource.RLIM_INFINITY else size
