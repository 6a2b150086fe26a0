"""Reads a process from /proc: state, ancestry, environment, memory, and our access to these.

Needs no other program and pauses nothing. Which files can block (by the sources of Linux 6.x,
fs/proc): ``stat``, ``status`` and ``wchan`` take no lock that a stuck process can hold; ``syscall``
and ``io`` wait only while the process is inside execve. ``cmdline``, ``environ``, ``maps`` and
``mem`` take the process's mmap lock: they block while one of its threads is stuck in the kernel
inside mmap or a page fault (a dead network file system). So `time_limit.within` reads them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import struct
import time
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import Struct

from lightning_hangcheck import machine
from lightning_hangcheck.model.evidence import Gap, GapKind
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GONE = (FileNotFoundError, ProcessLookupError)
"""ENOENT on open, ESRCH if the process ends between open and read."""
ENDED = "the process has ended"
MEMORY_LIMIT_S = 0.2
MAPS_LIMIT_S = 1.0
"""Takes about 1 ms, but more than 0.2 s on a crowded machine (load 12 on 2 cores)."""
PRESENT_LIMIT_S = 1.0
PAGE = 4096
STACK_POINTER = 7
"""Its place in /proc/PID/task/TID/syscall, behind the call's number and six arguments."""
AWAKE_S = 0.005
"""How long a thread that looks after connections is awake at most, unless it works."""
SYSTEM_LIBRARIES = ("libc.", "libc-", "libpthread", "libstdc++", "libgcc_s", "ld-", "[")
"""Below every native thread, and the kernel's own code in each process."""
NO_FILE = "(no file)"
"""Code that a compiler made in memory."""
ATTEMPTS = 3  # Setting a variable meanwhile may move all of them, and a thread may just be awake
MOST_VARIABLES = LONGEST_VARIABLE = 4096
"""Longer values are cut: no rank number or address is so long."""


def read_table(path: str) -> list[list[str]]:
    """Read a table of /proc: the words of each line."""
    return [line.split() for line in machine.read_proc(path).decode(errors="replace").splitlines()]


def thread_ids(pid: int) -> list[int]:
    """List a process's threads, the main thread first."""
    tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208 - a hot path
    return sorted(tids, key=lambda tid: tid != pid)


def has_thread(pid: int, *beginnings: str) -> bool:
    """Whether a thread's name starts with one of these; 10 microseconds a thread."""
    with suppress(OSError):
        lines = (machine.read_process_stat(pid, tid) for tid in thread_ids(pid))
        return any(line is not None and line.name.startswith(beginnings) for line in lines)
    return False


def io_bytes(pid: int, tid: int | None = None) -> tuple[int, int] | None:
    """Return bytes that passed through read-like and write-like calls so far (rchar, wchar).

    Bytes of a process include those of its ended children; bytes of a thread do not. None if it is
    gone, belongs to another user, or the kernel does not count.
    """
    try:
        text = machine.read_proc(f"/proc/{pid}/io" if tid is None else f"/proc/{pid}/task/{tid}/io")
    except OSError:
        return None
    counts = dict(line.split(b": ") for line in text.splitlines())
    return int(counts[b"rchar"]), int(counts[b"wchar"])


UNREADABLE = machine.StatLine("", "?", 0, 0, 0.0, 0, 0, 0, 0, 0)


def vitals(pid: int) -> machine.StatLine | None:
    """Read a process's state and use of resources, about 20 microseconds; None if it is gone.

    The state is ``?`` if it may be alive but cannot be read (hidepid=1, no descriptor left).
    """
    try:
        return machine.read_stat(pid)
    except GONE:
        return None
    except OSError:
        return UNREADABLE


def has_ended(pid: int) -> bool:
    """Whether a process is gone or a zombie; a process that cannot be read is not gone."""
    signs = vitals(pid)
    return signs is None or signs.has_ended


_LAST_RAN = re.compile(rb"^se\.exec_start\s*:\s*(\d+\.\d+)$", re.MULTILINE)
"""kernel/sched/debug.c: milliseconds on the clock of the processor that the thread last ran on."""


def slept_s(pid: int, tid: int | None = None) -> float | None:
    """Return for how many seconds a thread, by default the main one, was on no processor.

    Takes 0.5 ms and does not disturb the process. A dump counts as running if it pauses the
    process. Clocks of processors drift apart (1.5 s in 5,000 s on one machine). So our thread moves
    for a moment to the processor that the other thread last ran on, and reads its own time there.
    None if the kernel or a container hides /proc/PID/sched. The kernel shows 0 for a thread that is
    woken on another processor until it runs there (kernel/sched/fair.c).
    """

    def last_ran_ms(task: str) -> float | None:
        found = _LAST_RAN.search(machine.read_proc(f"/proc/{task}/sched"))
        return float(found[1]) if found else None

    try:
        line, last_ran = machine.read_stat(pid, tid or pid), last_ran_ms(f"{pid}/task/{tid or pid}")
        if line.state not in "SDT" or last_ran == 0.0:
            return 0.0
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {line.processor})
        try:
            now = last_ran_ms("thread-self")
        finally:
            os.sched_setaffinity(0, allowed)
    except OSError:
        return None
    return None if last_ran is None or now is None else max(0.0, now - last_ran) / 1000


class ProcessRef(Struct, frozen=True):
    """A process for good: its pid alone may be reused later."""

    pid: int
    parent_pid: int
    started_ticks: int


def process_ref(pid: int) -> ProcessRef | None:
    """Return the reference of one process; None if it is gone or hidden."""
    line = machine.read_process_stat(pid)
    return None if line is None else ProcessRef(pid, line.parent_pid, line.started_ticks)


def descendants(*roots: int) -> tuple[ProcessRef, ...]:
    """Return all processes below the roots, without the roots, parents before their children.

    About 15 microseconds for each process of the machine; threads know their children, but are many
    more. A process whose parent ends meanwhile may be missed. Zombies are included.
    """
    children: dict[int, list[ProcessRef]] = {}
    for ref in filter(None, map(process_ref, machine.process_ids())):
        children.setdefault(ref.parent_pid, []).append(ref)
    found = [ref for root in roots for ref in children.pop(root, ())]
    for ref in found:
        found += children.pop(ref.pid, ())
    return tuple(found)


def born_ns(pid: int) -> int:
    """Return when a process started, on the monotonic clock, to 0.01 s; now, if it is gone.

    The kernel counts from boot and through suspensions (proc(5)).
    """
    line, now_ns = machine.read_process_stat(pid), time.monotonic_ns()
    if line is None:
        return now_ns
    since_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    started_ns = line.started_ticks * (NANOSECONDS // machine.TICKS_PER_SECOND)
    return now_ns - max(0, since_boot_ns - started_ns)


def began_s(pid: int) -> float:
    """Return when a process started, by the wall clock as it is now, in seconds since 1970."""
    return time.time() - (time.monotonic_ns() - born_ns(pid)) / NANOSECONDS


# Namespaces of containers


def shares_namespace(pid: int, kind: str) -> bool:
    """Whether a process is in our namespace (``mnt``, ``net``, ``pid``); yes if hidden."""
    theirs = machine.read_link(f"/proc/{pid}/ns/{kind}")
    return not theirs or theirs == machine.read_link(f"/proc/self/ns/{kind}")


def root_of(pid: int) -> str:
    """Return the prefix for paths of a process; empty if it sees the same files as we do."""
    return "" if shares_namespace(pid, "mnt") else f"/proc/{pid}/root"


def numbers_of(pid: int, tid: int | None = None) -> list[int]:
    """Return the ids of a process or thread in all pid namespaces, ours first; empty if gone."""
    try:
        return [int(word) for word in machine.read_status(pid, tid).get("NSpid", "").split()]
    except OSError:
        return []


def inner_thread_ids(pid: int) -> dict[int, int]:
    """Map a process's thread ids in its own pid namespace to ours.

    A process's memory holds the ids of its own namespace. Empty if both are the same.
    """
    if len(numbers_of(pid)) < 2:
        return {}
    try:
        every = [numbers_of(pid, tid) for tid in thread_ids(pid)]
    except OSError:
        return {}
    return {ids[-1]: ids[0] for ids in every if ids}


def our_id_of_child(pid: int, child: int) -> int | None:
    """Return our id of a child that a process knows by its own id; None if not found."""
    if len(numbers_of(pid)) < 2:
        return child
    below = (ref.pid for ref in descendants(pid) if ref.parent_pid == pid)
    return next((candidate for candidate in below if numbers_of(candidate)[-1:] == [child]), None)


# Memory


def read_memory(pid: int, address: int, length: int) -> bytes:
    """Read memory of a process without stopping it: what is mapped and can be read in 0.2 s."""
    try:
        return within(MEMORY_LIMIT_S, lambda: _by_page(pid, address, length), of=pid)
    except (NoAnswer, OSError, OverflowError):
        return b""


def _by_page(pid: int, address: int, length: int) -> bytes:
    """Read page by page: a read over the end of a mapping would fail as a whole."""
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    data = b""
    try:
        while len(data) < length:
            start = address + len(data)
            part = os.pread(descriptor, min(length - len(data), PAGE - start % PAGE), start)
            data += part
            if not part:
                break
    except OSError:
        if not data:
            raise
    finally:
        os.close(descriptor)
    return data


def memory_map(pid: int) -> list[list[str]]:
    """Read the table of what a process maps; empty if it cannot be read in time."""
    try:
        return within(MAPS_LIMIT_S, lambda: read_table(f"/proc/{pid}/maps"), of=pid)
    except (NoAnswer, OSError):
        return []


def waiting_libraries(pid: int, tids: Iterable[int]) -> dict[int, str]:
    """Return the library that waits, for each thread in a system call; 3 ms with torch.

    The first word of the stack that points into code is taken for the return address into it: words
    farther up may be left from calls that have returned, even from an earlier thread. Empty for a
    thread that stays awake or whose memory cannot be read; one that has ended is left out.
    """
    code = sorted(
        (int(begin, 16), int(end, 16), row[5].rpartition("/")[2] if len(row) > 5 else NO_FILE)
        for row in memory_map(pid)
        if len(row) > 1 and "x" in row[1]
        for begin, _, end in [row[0].partition("-")]
    )
    begins = [begin for begin, _, _ in code]

    def library_at(address: int) -> str:
        at = bisect_right(begins, address) - 1
        name = code[at][2] if at >= 0 and address < code[at][1] else ""
        return "" if name.startswith(SYSTEM_LIBRARIES) else name

    def library_of(tid: int) -> str:
        for _ in range(ATTEMPTS):
            fields = machine.read_proc(f"/proc/{pid}/task/{tid}/syscall").split()
            if len(fields) > STACK_POINTER:
                data = read_memory(pid, int(fields[STACK_POINTER], 16), PAGE)
                words = struct.unpack(f"={len(data) // 8}Q", data[: len(data) // 8 * 8])
                return next(filter(None, map(library_at, words)), "")
            time.sleep(AWAKE_S)
        return ""

    found = {}
    for tid in tids if code else ():
        with suppress(OSError):
            found[tid] = library_of(tid)
    return found


def has_loaded(pid: int, library: str) -> bool:
    """Whether a library whose file name begins so is mapped; 2 ms if torch is loaded."""
    rows = memory_map(pid)
    return any(row[-1].rpartition("/")[2].startswith(library) for row in rows if len(row) > 5)


def command_line(pid: int) -> list[str] | Gap:
    """Read the command line of a process."""
    return command_lines([pid])[pid]


def command_lines(pids: Iterable[int]) -> dict[int, list[str] | Gap]:
    """Read the command lines of many processes."""
    return _texts_of(pids, "cmdline", "command line")


def read_environment(pid: int) -> dict[str, str] | Gap:
    """Read the environment with which a process was started; later changes do not show."""
    return environments([pid])[pid]


def environments(pids: Iterable[int]) -> dict[int, dict[str, str] | Gap]:
    """Read the environments of many processes."""
    found = _texts_of(pids, "environ", "environment")
    return {
        pid: content if isinstance(content, Gap) else _by_name(content)
        for pid, content in found.items()
    }


def _texts_of(pids: Iterable[int], name: str, what: str) -> dict[int, list[str] | Gap]:
    """Read lists of NUL-terminated texts; zombies and kernel threads have none."""
    found: dict[int, list[str] | Gap] = {}
    for pid in dict.fromkeys(pids):
        why, remedy, path = "", "", f"/proc/{pid}/{name}"
        try:
            data = within(PRESENT_LIMIT_S, partial(machine.read_proc, path), of=pid)
            if data:
                found[pid] = data.removesuffix(b"\0").decode(errors="replace").split("\0")
                continue
            why = "it shows none: the process is ending, or was started without any"
        except GONE:
            why = ENDED
        except PermissionError:
            why, remedy = "it belongs to another user", "run as that user, or as root"
        except NoAnswer as error:
            why = f"{error}: the process is stuck in the kernel with its memory locked"
        except OSError as error:
            why = f"{path} cannot be read ({error})"
        found[pid] = Gap(f"{what} of pid {pid}", None, why, "process_memory", remedy)
    return found


def _by_name(text: Iterable[str]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in text)
    return {name: value for name, equals, value in pairs if equals}


def present_environment(pid: int) -> dict[str, str] | Gap:
    """Read a process's environment variables as they are now, from its memory; about 2 ms.

    Some launchers number ranks after the start: an actor of Ray Train sets its variables (ray 2.60,
    train/v2/_internal/execution/worker_group/worker_group.py), and so does a function that a script
    spawns. Python passes each change to the C library, whose ``environ`` points to all variables.
    Our own C library shows where ``environ`` is in the process's, if both are the same.
    """

    def files_mapped(of: int) -> dict[str, int]:
        """Return the first address of each mapped file, by device and inode."""
        rows = reversed(read_table(f"/proc/{of}/maps"))
        begins = (row for row in rows if row[4] != "0" and int(row[2], 16) == 0)
        return {f"{row[3]} {row[4]}": int(row[0].partition("-")[0], 16) for row in begins}

    def addresses(at: int, most: int) -> list[int]:
        """Read addresses up to the first 0."""
        data = _by_page(pid, at, 8 * most)
        found = struct.unpack(f"={len(data) // 8}Q", data[: len(data) // 8 * 8])
        return list(takewhile(bool, found))

    def look() -> dict[str, str]:
        ours, theirs = files_mapped(os.getpid()), files_mapped(pid)
        symbol = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ"))
        file = max((name for name in ours if ours[name] <= symbol), key=lambda name: ours[name])
        if file not in theirs:
            raise LookupError("it has another C library than this process")
        pointer = theirs[file] + symbol - ours[file]
        for _ in range(ATTEMPTS):  # it may change meanwhile
            array = addresses(pointer, 1)
            variables = addresses(array[0], MOST_VARIABLES) if array else []
            read = (_by_page(pid, variable, LONGEST_VARIABLE) for variable in variables)
            texts = [text.partition(b"\0")[0].decode(errors="surrogateescape") for text in read]
            same = array == addresses(pointer, 1)
            if variables and same and variables == addresses(array[0], MOST_VARIABLES):
                return _by_name(texts)
        raise LookupError("it changes again and again")

    remedy = ""
    try:
        return within(PRESENT_LIMIT_S, look, of=pid)
    except GONE:
        why = ENDED
    except PermissionError:
        refusal = why_unreadable(pid)
        why, remedy = refusal.why, refusal.remedy
    except (LookupError, ValueError, ArithmeticError, NoAnswer, OSError) as error:
        why = f"its memory cannot be read ({error})"
    return Gap(f"present environment of pid {pid}", None, why, "process_memory", remedy)


# May we read a process, and if not, what would allow it? Decided by the kernel's answer and by
# facts of the machine, never by the text of an error.

CAP_SYS_PTRACE = 19  # include/uapi/linux/capability.h
CONTAINER = (
    "this container may not read processes",
    "start it with docker run --cap-add=SYS_PTRACE "
    "(Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])",
)


def why_refused(pid: int) -> Unseen | None:
    """Return why the kernel does not let us read a process; None if it does, or if that is gone.

    /proc/PID/syscall has the same check as ptrace (PTRACE_MODE_ATTACH, Yama included).
    """
    try:
        machine.read_proc(f"/proc/{pid}/syscall")
    except PermissionError:
        return why_unreadable(pid)
    except OSError:
        return None
    return None


def why_filtered() -> Unseen | None:
    """Return a reason if a seccomp filter keeps us from reading any memory, even our own.

    Docker's default filter did so before version 19.03, and on kernels before 4.8.
    """
    library = ctypes.CDLL(None)
    refused: int = library.process_vm_readv(os.getpid(), None, 0, None, 0, 0)
    return Unseen(*CONTAINER) if refused else None


def why_unreadable(pid: int) -> Unseen:
    """Say why a process may not be read; facts that cannot be read count as absent."""

    def field(whose: int | str, name: str, absent: str) -> str:
        try:
            return machine.read_status(whose).get(name, absent)
        except OSError:
            return absent

    try:
        yama_scope = int(machine.read_proc("/proc/sys/kernel/yama/ptrace_scope"))
    except OSError:
        yama_scope = 0
    return explain(
        own_user=os.geteuid(),
        their_user=int(field(pid, "Uid", str(os.geteuid())).split()[0]),
        capable=bool(int(field("self", "CapEff", "0"), 16) >> CAP_SYS_PTRACE & 1),
        yama_scope=yama_scope,
    )


def explain(*, own_user: int, their_user: int, capable: bool, yama_scope: int) -> Unseen:
    """Say why reading is refused and what would allow it: users, capability, Yama's scope."""
    scope = f"kernel.yama.ptrace_scope is {yama_scope}"
    if own_user not in (0, their_user):
        why = f"it belongs to user id {their_user}, we are user id {own_user}"
        return Unseen(why, "run as that user, or as root")
    if yama_scope >= 3:
        remedy = "set it to 1 in /etc/sysctl.d and boot again"
        return Unseen(f"the kernel lets nobody read it ({scope})", remedy)
    if yama_scope == 2 and not capable:
        remedy = "run as root, or: sudo sysctl -w kernel.yama.ptrace_scope=1"
        return Unseen(f"the kernel wants CAP_SYS_PTRACE ({scope})", remedy)
    if yama_scope == 1 and not capable:
        remedy = "start the job with hangcheck run, or: sudo sysctl -w kernel.yama.ptrace_scope=0"
        return Unseen(f"the kernel lets only its ancestors read it ({scope})", remedy)
    if own_user == 0 and not capable:
        return Unseen(*CONTAINER)
    return Unseen("it is protected: it changed its user, or is not dumpable", "run as root")


# How processes end that are not our children: what the kernel shows to others than the parent

# include/uapi/linux/pidfd.h: ioctl PIDFD_GET_INFO (0xFF, 11) of struct pidfd_info, first 64 bytes;
# the mask asks for PIDFD_INFO_EXIT, which Linux 6.15 and later answer once the process is reaped.
PIDFD_GET_INFO = 0xC040FF0B
PIDFD_INFO_EXIT = 1 << 3
INFO_BYTES = 64
EXIT_CODE_AT = 60
POLL_S = 0.05


class Exited(Struct, frozen=True, kw_only=True):
    """A watched process has ended; ``seen_ns`` is when that was noticed, in monotonic time.

    ``exit_code`` is as in Python's subprocess; None if it was reaped before, or is not shown.
    """

    pid: int
    exit_code: int | None
    seen_ns: int


class _Watched(NamedTuple):
    """A process that has not ended, its pidfd if any, and whether its exit code is shown to us."""

    started_ticks: int
    descriptor: int | None
    code_shown: bool


class ExitWatcher:
    """Watches processes, which need not be our children, for their end.

    The exit code is read from the zombie before its parent reaps it; from Linux 6.15 on also later.
    Without pidfds (before Linux 5.3, or by a container's filter), processes are polled at 20 Hz.
    """

    def __init__(self, *, use_pidfd: bool = True) -> None:
        self._use_pidfd = use_pidfd and hasattr(os, "pidfd_open")
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}
        self._missed: list[Exited] = []

    def watch(self, pid: int) -> None:
        """Watch a process; one that is already gone is reported by the next `wait`."""
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
        """Wait up to ``timeout`` seconds for watched processes to end; return and forget those."""
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
        self._epoll.close()

    def _forget(self, pid: int) -> Exited:
        watched, line = self._watched.pop(pid), vitals(pid)
        seen_ns, code = time.monotonic_ns(), None
        # its pid may be reused by now, and the kernel may hide the code as 0
        if line is not None and line.has_ended and line.started_ticks == watched.started_ticks:
            shown = line.exit_status or watched.code_shown
            code = os.waitstatus_to_exitcode(line.exit_status) if shown else None
        if watched.descriptor is not None:
            code = _code_of_reaped(watched.descriptor) if code is None else code
            self._epoll.unregister(watched.descriptor)
            os.close(watched.descriptor)
        return Exited(pid=pid, exit_code=code, seen_ns=seen_ns)


def _code_of_reaped(pidfd: int) -> int | None:
    """Return the exit code of a process that its parent has reaped; None on older kernels."""
    info = bytearray(INFO_BYTES)
    struct.pack_into("=Q", info, 0, PIDFD_INFO_EXIT)
    with suppress(OSError):
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        if struct.unpack_from("=Q", info, 0)[0] & PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(*struct.unpack_from("=i", info, EXIT_CODE_AT))
    return None


# What a probe brings

Fact = TypeVar("Fact")
Looked = tuple[Fact | None, tuple[Gap, ...]]


class Unseen(Exception):
    """A probe cannot see its object: why, and what would make it visible; no full stops."""

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.why, self.remedy = why, remedy


def guarded(kind: GapKind, what: str, rank: int | None, probe: Callable[[], Fact]) -> Looked[Fact]:
    """Run a probe that may fail in any way; return its fact, or a gap that says why it failed."""
    try:
        return probe(), ()
    except Unseen as error:
        why, remedy = error.why, error.remedy
    except Exception as error:  # noqa: BLE001 - a failing probe must not stop the watcher
        why, remedy = f"the probe failed ({type(error).__name__}: {error})", ""
    return None, (Gap(what, rank, why, kind, remedy),)
