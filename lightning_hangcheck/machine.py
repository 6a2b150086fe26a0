"""What the machine allows a process and reports of it: plain numbers from /proc and the kernel."""

from __future__ import annotations

import mmap
import os
import resource
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NamedTuple
else:
    from lightning_hangcheck.plain import NamedTuple


# Files of /proc, each with its one reader

PIECE = 65536
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MOST_ANCESTORS = 64  # process ids are reused: a longer chain may be a cycle


def read_proc(path: str) -> bytes:
    """Read a whole file of /proc, about 8 microseconds; OSError if it has ended, or is not ours."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, PIECE):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def read_link(path: str) -> str:
    """Return the target of a link of /proc; empty if that is not shown."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a hot path, and mostly no path
    except OSError:
        return ""


def process_ids() -> list[int]:
    """List all processes that are visible from here."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - hot


def read_status(pid: int | str, tid: int | None = None) -> dict[str, str]:
    """Read the named fields of a process, or of one of its threads."""
    task = "" if tid is None else f"/task/{tid}"
    lines = read_proc(f"/proc/{pid}{task}/status").decode(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


class StatLine(NamedTuple):
    """The fields of /proc/PID/stat, or a thread's, that we use; numbered as in proc(5)."""

    name: str  # 2: the name of the program, or of the thread
    state: str  # 3; ``S`` if the main thread has ended, and others run (20, their number)
    parent_pid: int  # 4
    major_faults: int  # 12
    cpu_s: float  # 14 and 15, user and system time of all its threads, or of this thread
    started_ticks: int  # 22, clock ticks between boot and the start of the process
    rss_bytes: int  # 24
    caught_signals: int  # 34, a bit for each signal up to 31 that has a handler
    processor: int  # 39, on which it last ran
    exit_status: int  # 52: a zombie's wait status; 0 if ptrace access is refused

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, but its parent has not noticed yet."""
        return self.state in "ZX"

    def is_still(self, started_ticks: int) -> bool:
        """Whether it started then, as far as known; otherwise its pid was reused."""
        return 0 in (self.started_ticks, started_ticks) or self.started_ticks == started_ticks


def parse_stat(line: bytes) -> StatLine:
    """Split the line behind the name, which may hold anything; ValueError, IndexError if torn."""
    behind = line.rindex(b")")
    fields = line[behind + 2 :].split()
    state, threads = fields[0].decode("ascii"), int(fields[17])
    return StatLine(
        name=line[line.index(b"(") + 1 : behind].decode(errors="replace"),
        state="S" if state == "Z" and threads > 1 else state,
        parent_pid=int(fields[1]),
        major_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
        started_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        caught_signals=int(fields[31]),
        processor=int(fields[36]),
        exit_status=int(fields[49]),
    )


def read_stat(pid: int, tid: int | None = None) -> StatLine:
    """Read the line of a process, or of one of its threads; raises as `read_proc`."""
    task = "" if tid is None else f"/task/{tid}"
    descriptor = os.open(f"/proc/{pid}{task}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:  # a hot path: the line comes in one piece
        return parse_stat(os.read(descriptor, PIECE))
    finally:
        os.close(descriptor)


def read_process_stat(pid: int, tid: int | None = None) -> StatLine | None:
    """Read the same line; None if the process is gone, or not visible from here."""
    try:
        return read_stat(pid, tid)
    except (OSError, IndexError, ValueError):
        return None


def ancestors(pid: int) -> Iterator[int]:
    """Yield the parent process, its parent, and so on, as far as visible; without init."""
    for _ in range(MOST_ANCESTORS):
        line = read_process_stat(pid)
        if line is None or line.parent_pid <= 1:
            return
        pid = line.parent_pid
        yield pid


def is_alive(pid: int, started_ticks: int) -> bool:
    """Whether this very process lives: no zombie, and no other process with its id."""
    # If the kernel does not say, it counts as alive: unseen is not gone.
    try:
        line = read_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, IndexError, ValueError):
        return True
    return line.started_ticks == started_ticks and not line.has_ended


def ticks_since_boot() -> int:
    """Return the present time in the unit of ``started_ticks``."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)


def pid_namespace() -> str:
    """Name the pid namespace of this process: ``pid:[4026531836]``; empty if it is not shown."""
    return read_link("/proc/self/ns/pid")


@cache
def which_machine() -> str:
    """Name the place in which process ids visible from here are valid; the name is unique."""
    # Each kernel boot has an id of its own (random(4)), and each pid namespace a number:
    # ``3f2a9c1e-4026531836``. Empty if the kernel does not say.
    number = pid_namespace().strip("pid:[]")
    try:
        boot = read_proc("/proc/sys/kernel/random/boot_id").decode()
    except OSError:
        return ""
    return f"{boot[:8]}-{number}" if number else ""


GROUPS = Path("/sys/fs/cgroup")


def groups_of(pid: int, controller: str, groups: Path = GROUPS) -> list[tuple[Path, bool]]:
    """Return the folders of a process's control group and its parents: each may have a limit."""
    # each with whether it is in the unified hierarchy (version 2), whose files have other names
    try:
        lines = read_proc(f"/proc/{pid}/cgroup").decode(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        unified = not controllers
        if unified or controller in controllers.split(","):
            inner = Path(path.lstrip("/"))
            mounted = groups if unified else groups / controller
            found += [(mounted / parent, unified) for parent in (inner, *inner.parents)]
    return found


# Room for threads of ours

FIRST_PID_NAMESPACE = f"pid:[{0xEFFFFFFC}]"
"""Processes in this namespace see all others (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""


class NoRoom(OSError):
    """A thread or process of ours was not started; the text says which limit is near."""


def require_room(threads: int, ranks: int = 1, groups: Path = GROUPS) -> None:
    """Check every limit on the threads that we want to start; 0.4 ms if far from all."""
    # ``ranks``: number of ranks on this machine that start as many, and train; ``groups``: mount
    # point of control groups. NoRoom if too little would be left to training.
    for name, limit, used, needed in _bounds(threads, ranks, groups):
        if limit - used < needed:
            taken = f"{name} is {limit}, in use are {used}"
            raise NoRoom(f"{taken}, and {needed} should be free")


def _bounds(threads: int, ranks: int, groups: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield each limit: its name and value, how much is in use, how much should be free."""
    # Limits that cannot be read are left out: sandboxes such as gVisor lack some of these files.
    unread = suppress(OSError, ValueError, IndexError, KeyError)  # "max" is no number
    said = os.environ.get("OMP_NUM_THREADS", "")
    pool = int(said) if said.isdecimal() else os.cpu_count() or 1
    # 64 per rank besides torch's two pools: autograd's, the backend's (three with gloo, about ten
    # with NCCL), loggers', and about 16 DataLoader workers with two or three each
    needed = ranks * (threads + 64 + 2 * pool)
    everybody = 0
    with unread:  # of the whole machine, whatever is visible from here
        everybody = int(read_proc("/proc/loadavg").split()[3].partition(b"/")[2])
    for name in ("threads-max", "pid_max"):
        with unread:
            limit = int(read_proc(f"/proc/sys/kernel/{name}"))
            yield f"the kernel's {name}", limit, everybody, needed
    for folder, _ in groups_of(os.getpid(), "pids", groups):
        with unread:
            limit = int((folder / "pids.max").read_bytes())
            used = int((folder / "pids.current").read_bytes())
            yield "pids.max of the control group", limit, used, needed
    with unread:
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        # in the first user namespace, root and holders of these capabilities pass (kernel/fork.c)
        first = read_proc("/proc/self/uid_map").split()[:2] == [b"0", b"0"]
        may_pass = 1 << 21 | 1 << 24  # linux/capability.h: CAP_SYS_ADMIN, CAP_SYS_RESOURCE
        passes = first and (os.getuid() == 0 or int(read_status("self")["CapEff"], 16) & may_pass)
        if limit != resource.RLIM_INFINITY and not passes:
            # everybody's count is at least as large, and one read gives it
            far = everybody and limit - everybody >= needed
            used = everybody if far else _threads_of_user(everybody)
            yield "the user's limit of processes and threads (ulimit -u)", limit, used, needed
    with unread:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY:
            used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone, at every start
            # ours: page, journal, stacks, the server's socket; a DataLoader keeps some for each
            # worker and tensor, gloo and NCCL some per peer
            needed = 4 + 128
            yield "the limit of open files (ulimit -n)", limit, used, needed
    with unread:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            used = int(read_proc("/proc/self/statm").split()[0]) * mmap.PAGESIZE
            stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
            stack = 8 * 2**20 if stack == resource.RLIM_INFINITY else stack
            # glibc reserves 128 MiB for a thread's first allocation (malloc/arena.c: twice
            # HEAP_MAX); our threads may take a twentieth of what is free
            needed = threads * (stack + 128 * 2**20) * 20
            yield "the limit of address space (ulimit -v)", limit, used, needed


def _threads_of_user(everybody: int) -> int:
    """Count this user's threads; everybody's if some processes are not visible from here."""
    if pid_namespace() != FIRST_PID_NAMESPACE:
        return everybody
    user, found = str(os.getuid()), 0
    for pid in process_ids():
        with suppress(OSError):  # it has ended
            status = read_status(pid)
            found += int(status["Threads"]) if status["Uid"].split()[0] == user else 0
    return found


def start_thread(work: Callable[[], None], name: str, ranks: int = 1) -> threading.Thread:
    """Start a daemon thread, with its name in the kernel too; NoRoom if none can be started."""
    require_room(1, ranks)
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoRoom("the machine gives no further thread") from error
    with suppress(OSError):
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(name)
    return thread
