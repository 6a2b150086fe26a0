"""Reads the kernel's view of a process: its threads, what each waits for, and its memory.

Nothing is paused, and the files read here take no lock of the process. If an argument of a system
call is an address, a few bytes of the process's memory are read there.
"""

from __future__ import annotations

import math
import os
import re
import signal
import struct
import time
from contextlib import suppress
from ctypes import c_int
from typing import TYPE_CHECKING, NamedTuple

import psutil
from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.look import proc
from lightning_hangcheck.look.proc import Looked, Unseen, guarded
from lightning_hangcheck.machine import GROUPS, StatLine, groups_of, read_link, read_proc, read_stat
from lightning_hangcheck.model.evidence import (
    OF_MAIN_THREADS,
    PAGE_FAULT,
    Gap,
    MemoryUse,
    ProcessStack,
    ProcessState,
    TargetKind,
    ThreadState,
    WaitTarget,
)
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


MOST_THREADS = 256
"""A rank with CUDA, NCCL and data loading has 50 to 200 threads; more add no information."""
MOST_NAMELESS = 32
POLLERS = frozenset({"TP_SHM_reactor", "TP_IBV_reactor"})
"""Threads of torch's RPC (tensorpipe's reactor.cc) that poll for messages without end. Each uses a
whole core if one is free, whether the rank waits or works."""
OF_ALARM = 1 << (signal.SIGALRM - 1)
OF_TIMERS = sum(
    1 << (number - 1)
    for number in (
        *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGHUP, signal.SIGCONT),
    )
)


def kernel_state(pid: int, rank: int | None, time_limit_s: float) -> Looked[ProcessState]:
    """Read the state of a process and of up to 256 of its threads, the main thread first.

    Takes about 30 microseconds a thread. Threads that are not read in time are counted as left out.
    """
    deadline = time.monotonic() + time_limit_s
    unseen: dict[str, Unseen] = {}

    def look() -> ProcessState:
        try:
            line = read_stat(pid)
            tids = proc.thread_ids(pid)
        except proc.GONE:
            raise Unseen(proc.ENDED) from None
        except PermissionError:
            raise Unseen("/proc hides it: run as its user, or as root") from None
        counted = proc.io_bytes(pid)
        refusal = None if line.has_ended else proc.why_refused(pid)
        if refusal is not None:
            unseen["system calls of"] = refusal
        if counted is None:
            off = Unseen("the kernel does not count them (CONFIG_TASK_IO_ACCOUNTING is off)")
            unseen["bytes read and written by"] = refusal or off
        threads, polled_s = _threads(
            pid, tids[:MOST_THREADS], deadline, calls=refusal is None, bytes_=counted is not None
        )
        read_bytes, written_bytes = counted or (None, None)
        code = os.waitstatus_to_exitcode(line.exit_status) if line.exit_status else None
        return ProcessState(
            pid=pid,
            parent_pid=line.parent_pid,
            state=line.state,
            started_ticks=line.started_ticks,
            cpu_s=max(0.0, line.cpu_s - sum(polled_s)),
            rss_bytes=line.rss_bytes,
            major_faults=line.major_faults,
            exit_code=code if line.has_ended else None,
            catches_timers=bool(line.caught_signals & OF_TIMERS),
            catches_alarm=bool(line.caught_signals & OF_ALARM),
            polls=bool(polled_s),
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            threads=tuple(threads),
            threads_left_out=len(tids) - len(polled_s) - len(threads),
        )

    state, gaps = guarded("kernel_state", f"kernel state of pid {pid}", rank, look)
    for what, why in unseen.items():
        gaps += (Gap(f"{what} pid {pid}", rank, why.why, "kernel_state", why.remedy),)
    return state, gaps


def with_threads_of(state: ProcessState, stack: ProcessStack) -> ProcessState:
    """Add left-out Python threads: without them, waits would seem to change on a busy machine."""
    if not state.threads_left_out:
        return state
    read = {thread.tid for thread in state.threads}
    tids = [
        thread.tid for thread in stack.threads if thread.tid is not None and thread.tid not in read
    ]
    calls = proc.why_refused(state.pid) is None
    found, _ = _threads(state.pid, tids[:MOST_THREADS], math.inf, calls=calls, bytes_=False)
    left_out = max(0, state.threads_left_out - len(found))
    return replace(state, threads=(*state.threads, *found), threads_left_out=left_out)


def with_libraries(state: ProcessState, stack: ProcessStack) -> ProcessState:
    """Add whose code nameless native threads wait in, if for more than a word of memory.

    A new thread has its starter's name: gloo's until torch 2.11, and NCCL's, mostly keep it.
    """
    of_python = {thread.tid for thread in stack.threads}
    nameless = [
        thread.tid
        for thread in state.threads[1:]
        if thread.name in (state.threads[0].name, *OF_MAIN_THREADS)
        and thread.tid not in of_python
        and thread.syscall is not None
        and {target.kind for target in thread.waits_for} != {"futex"}
    ]
    if not nameless:
        return state
    found = proc.waiting_libraries(state.pid, nameless[:MOST_NAMELESS])
    threads = (replace(each, library=found.get(each.tid, "")) for each in state.threads)
    return replace(state, threads=tuple(threads))


def led_by(state: ProcessState, tid: int | None) -> ProcessState:
    """Put the thread that trains first, and add what is read only for the first thread."""
    first = next((thread for thread in state.threads if thread.tid == tid), None)
    if first is None or first is state.threads[0]:
        return state
    queued_s, turns = _schedule(f"/proc/{state.pid}/task/{tid}")
    rest = (thread for thread in state.threads if thread is not first)
    return replace(state, threads=(replace(first, queued_s=queued_s, turns=turns), *rest))


def _threads(
    pid: int, tids: Sequence[int], deadline: float, *, calls: bool, bytes_: bool
) -> tuple[list[ThreadState], list[float]]:
    threads: list[ThreadState] = []
    polled_s: list[float] = []
    for tid in tids:
        if threads and time.monotonic() > deadline:
            break
        with suppress(OSError):  # the thread ended after it was listed
            line = read_stat(pid, tid)
            if line.name in POLLERS:
                polled_s.append(line.cpu_s)
            else:
                threads.append(_thread(pid, tid, line, calls, bytes_))
    return threads, polled_s


def _thread(pid: int, tid: int, line: StatLine, calls: bool, bytes_: bool) -> ThreadState:
    folder = f"/proc/{pid}/task/{tid}"
    wchan = read_proc(f"{folder}/wchan").decode(errors="replace").removeprefix("0")
    # ``running``, ``-1`` and two registers, or the number of the call and six arguments
    fields: list[bytes] = []
    if calls:
        with suppress(OSError):
            fields = read_proc(f"{folder}/syscall").split()
    number, wakes_ns = None, None
    arguments: tuple[int, ...] = ()
    targets: tuple[WaitTarget, ...] = ()
    if len(fields) > 6 and not fields[0].startswith(b"-"):
        number, arguments = int(fields[0]), tuple(int(field, 16) for field in fields[1:7])
        targets = waits_for(pid, number, arguments, wchan)
        wakes_ns = wakes_at(pid, number, arguments)
    elif line.state == "D" and wchan:  # in no call: it waits for a page from disk
        targets = (WaitTarget(call=PAGE_FAULT, kind="file"),)
    queued_s, turns = _schedule(folder) if tid == pid else (None, None)
    counted = proc.io_bytes(pid, tid) if bytes_ else None
    return ThreadState(
        tid=tid,
        name=line.name,
        state="R" if fields == [b"running"] else line.state,  # it woke since its state was read
        cpu_s=line.cpu_s,
        turns=turns,
        queued_s=queued_s,
        wchan=wchan,
        syscall=number,
        arguments=arguments,
        waits_for=targets,
        wakes_ns=wakes_ns,
        moved_bytes=sum(counted) if counted is not None else None,
    )


def _schedule(folder: str) -> tuple[float | None, int | None]:
    """Read fields 2 and 3 of schedstat; they are 0 if the kernel does not count."""
    try:
        queued_ns, turns = map(int, read_proc(f"{folder}/schedstat").split()[1:3])
    except (OSError, ValueError):
        return None, None
    return (queued_ns / NANOSECONDS, turns) if turns else (None, None)


# System calls in which threads are found blocked


class Call(NamedTuple):
    """A system call, how to find what it waits for, and which argument shows that."""

    name: str
    shape: str
    position: int = 0


RESTART = "restart_syscall"
"""The rest of a call with a time limit, after a tracer stopped the thread; the arguments stay."""
_CALLS = {
    "descriptor 0": """read 0 63, write 1 64, pread64 17 67, pwrite64 18 68, readv 19 65,
        writev 20 66, preadv 295 69, pwritev 296 70, sendfile 40 71, fsync 74 82, fdatasync 75 83,
        syncfs 306 267, getdents64 217 61, flock 73 32, fcntl 72 25, connect 42 203, accept 43 202,
        accept4 288 242, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212""",
    "path 0": "open 2 -, stat 4 -, lstat 6 -, mkdir 83 -, unlink 87 -, rename 82 -",
    "path 1": "openat 257 56, newfstatat 262 79, statx 332 291, mkdirat 258 34, unlinkat 263 35",
    "poll 0": "poll 7 -, ppoll 271 73",
    "select 0": "select 23 -, pselect6 270 72",
    "epoll 0": "epoll_wait 232 -, epoll_pwait 281 22",
    "child 0": "wait4 61 260, waitid 247 95",
    "futex 0": "futex 202 98",
    "signal 0": "pause 34 -, rt_sigsuspend 130 133, rt_sigtimedwait 128 137",
    "time 0": "nanosleep 35 101, clock_nanosleep 230 115, restart_syscall 219 128",
}
"""By shape and argument: names, and numbers on x86_64 and aarch64 (Linux 6.x, syscall_64.tbl and
include/uapi/asm-generic/unistd.h)."""


def calls_of(machine: str) -> dict[int, Call]:
    """Return an architecture's calls (``uname -m``) by number; empty if it is unknown here."""
    found = {}
    for what, calls in _CALLS.items():
        shape, position = what.split()
        for name, x86_64, aarch64 in (call.split() for call in calls.split(",")):
            number = {"x86_64": x86_64, "aarch64": aarch64}.get(machine, "-")
            if number != "-":
                found[int(number)] = Call(name, shape, int(position))
    return found


CALLS = calls_of(os.uname().machine)
POLLING = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
"""Calls that wait for any of several things."""

LONGEST_PATH = 4096  # PATH_MAX of the kernel
MOST_DESCRIPTORS = 8
"""A program that waits for more descriptors at once is a server: its wait has no target."""
WAITING_FCNTL = frozenset({7, 38})  # F_SETLKW, F_OFD_SETLKW: include/uapi/asm-generic/fcntl.h
POLLED = struct.Struct("=ihh")  # struct pollfd
FUTEX_WAITS = frozenset({0, 9})  # FUTEX_WAIT, FUTEX_WAIT_BITSET: include/uapi/linux/futex.h
FUTEX_PRIVATE, FUTEX_COMMAND = 128, 127
FUTEX_WAIT_BITSET = 9  # until a monotonic time, unless the FUTEX_CLOCK_REALTIME flag is set
LATEST_NS = (1 << 63) - 1  # the latest time of the kernel's own clock (ktime_t)
MONOTONIC, ABSOLUTE = 1, 1  # CLOCK_MONOTONIC, TIMER_ABSTIME: include/uapi/linux/time.h
TIMESPEC = struct.Struct("=qq")  # struct __kernel_timespec
WAIT_FOR_PID = 1  # P_PID: include/uapi/linux/wait.h
MILLISECONDS_AT = {"poll": 2, "epoll_wait": 3, "epoll_pwait": 3}
"""Position of a time limit in milliseconds; a negative one is no limit."""
TIME_AT = {"ppoll": 2, "select": 4, "pselect6": 4, "rt_sigtimedwait": 2}
"""Position of the address of a time limit; 0 is no limit."""
EPOLL_TARGET = re.compile(rb"^tfd:\s*(\d+)", re.MULTILINE)
TERMINAL = re.compile(r"/dev/(console|tty\d*|pts/\d+)")
"""Terminals that a person may use; ``/dev/ttyUSB0`` and the like are devices."""
PIDFD, EVENTFD = "anon_inode:[pidfd]", "anon_inode:[eventfd]"
EVENT = "eventfd:"
TIMERFD = "anon_inode:[timerfd]"
RUNNING_OUT = re.compile(rb"^it_value: \((?!0, 0\))", re.MULTILINE)
"""A timer that is set."""
OF_PROCESS = re.compile(rb"^Pid:\s*([1-9]\d*)$", re.MULTILINE)
OF_EVENT = re.compile(rb"^eventfd-id:\s*(\d+)$", re.MULTILINE)  # since Linux 5.2


def waits_for(
    pid: int, number: int, arguments: tuple[int, ...], wchan: str = ""
) -> tuple[WaitTarget, ...]:
    """Return what a system call in progress waits for, given its six arguments.

    Takes about 10 microseconds for a descriptor, 100 if memory must be read. ``wchan``, the kernel
    function in which the thread sleeps, tells a FIFO from a file without asking the file system,
    which may be what does not answer. If the call has a time limit, the result includes ``time``.
    """
    call = CALLS.get(number)
    if call is not None and call.name == RESTART and "poll" in wchan:
        call = Call("poll", "poll")
    if call is None:
        return ()
    # ``pipe_read``, ``pipe_write`` (``anon_`` since 6.14) or, in open, ``wait_for_partner``
    fifo = "pipe" in wchan or wchan == "wait_for_partner"
    found: list[tuple[TargetKind, str]] = []
    if call.shape == "descriptor":
        kind, name = describe(pid, arguments[0])
        kind = "fifo" if kind == "file" and fifo else kind
        kind = "lock" if call.name in ("flock", "fcntl") else kind
        if call.name != "fcntl" or arguments[1] in WAITING_FCNTL:
            found.append((kind, name))
    elif call.shape == "path":
        text = proc.read_memory(pid, arguments[call.position], LONGEST_PATH).partition(b"\0")[0]
        path = text.decode(errors="replace")
        folder = read_link(f"/proc/{pid}/cwd") if path and not path.startswith("/") else ""
        path = os.path.join(folder, path)  # noqa: PTH118 - nothing of a path is to be changed
        found.append(("fifo" if fifo else "file", path))
    elif call.shape == "child":  # one child, any child, or any of a process group
        by_id = call.name == "waitid"
        named = c_int(arguments[1] if by_id else arguments[0]).value
        if named > 0 and (not by_id or arguments[0] == WAIT_FOR_PID):
            children = [proc.our_id_of_child(pid, named)]
        else:
            children = [ref.pid for ref in proc.descendants(pid) if ref.parent_pid == pid]
        if len(children) <= MOST_DESCRIPTORS:
            found += [("process", str(child)) for child in children if child]
    elif call.shape == "futex":  # a word of memory, private or shared, or until a time
        if arguments[1] & FUTEX_COMMAND in FUTEX_WAITS:
            of_word: TargetKind = "futex" if arguments[1] & FUTEX_PRIVATE else "shared"
            found.append(("time", "") if arguments[3] else (of_word, f"{arguments[0]:#x}"))
    elif call.shape == "signal":
        found.append(("other", ""))
    elif call.name in POLLING:
        found += [describe(pid, descriptor) for descriptor in _descriptors(pid, call, arguments)]
    milliseconds, address = MILLISECONDS_AT.get(call.name), TIME_AT.get(call.name)
    if (
        call.shape == "time"
        or (milliseconds is not None and c_int(arguments[milliseconds]).value >= 0)
        or (address is not None and arguments[address] != 0)
    ):
        found.append(("time", ""))
    return tuple(WaitTarget(call=call.name, kind=kind, name=name) for kind, name in found)


def wakes_at(pid: int, number: int, arguments: tuple[int, ...]) -> int | None:
    """Return the monotonic time, in ns, until which a thread sleeps.

    Python 3.11 and later sleep like this in ``time.sleep`` and in all waits of `threading` that
    have a time limit. None for other calls, or if the thread has left the call meanwhile.
    """
    call = CALLS.get(number)
    name = "" if call is None else call.name
    clock, flags, address = arguments[:3]
    if name == "futex" and arguments[1] & ~FUTEX_PRIVATE == FUTEX_WAIT_BITSET:
        clock, flags, address = MONOTONIC, ABSOLUTE, arguments[3]
    elif name != "clock_nanosleep":
        return None
    if clock != MONOTONIC or flags != ABSOLUTE or not address:
        return None
    wakes_ns = _timespec_ns(pid, address)
    return wakes_ns if 0 <= wakes_ns <= LATEST_NS else None


def _timespec_ns(pid: int, address: int) -> int:
    """Read a time from memory, in ns; -1 if it cannot be read."""
    data = proc.read_memory(pid, address, TIMESPEC.size)
    seconds, nanoseconds = TIMESPEC.unpack(data) if len(data) == TIMESPEC.size else (0, -1)
    return int(seconds) * NANOSECONDS + int(nanoseconds)


def describe(pid: int, descriptor: int) -> tuple[TargetKind, str]:
    """Return what a process's descriptor is, and its name; asks no file system, so never blocks.

    A socket's name is ``socket:[INODE]``. A pidfd becomes readable when its process ends.
    """
    name = read_link(f"/proc/{pid}/fd/{descriptor}")
    if name.startswith("pipe:["):
        return "pipe", name
    if name.startswith("socket:["):
        return "socket", name
    if TERMINAL.fullmatch(name):
        return "terminal", name
    if name == PIDFD and (found := OF_PROCESS.search(descriptor_facts(pid, descriptor))):
        return "process", found[1].decode()
    if name == EVENTFD:
        return "other", event_behind(pid, descriptor) or name
    if name == TIMERFD and RUNNING_OUT.search(descriptor_facts(pid, descriptor)):
        return "time", ""
    is_file = name.startswith("/") and not name.startswith(("/dev/", "/proc/"))
    return ("file", name) if is_file else ("other", name)


def event_behind(pid: int, descriptor: int) -> str:
    """Return an eventfd's name, equal in all processes that share it; empty if unknown."""
    found = OF_EVENT.search(descriptor_facts(pid, descriptor))
    return f"{EVENT}[{found[1].decode()}]" if found is not None else ""


def descriptor_facts(pid: int, descriptor: int) -> bytes:
    """Read the kernel's facts on a descriptor (proc_pid_fdinfo(5)); empty if it is gone."""
    try:
        return read_proc(f"/proc/{pid}/fdinfo/{descriptor}")
    except OSError:
        return b""


def _descriptors(pid: int, call: Call, arguments: tuple[int, ...]) -> Iterable[int]:
    if call.shape == "poll":
        if arguments[1] > MOST_DESCRIPTORS:
            return ()
        data = proc.read_memory(pid, arguments[0], arguments[1] * POLLED.size)
        whole = data[: len(data) // POLLED.size * POLLED.size]
        return [descriptor for descriptor, _, _ in POLLED.iter_unpack(whole) if descriptor >= 0]
    if call.shape == "epoll":
        watched = EPOLL_TARGET.findall(descriptor_facts(pid, arguments[0]))
        numbers = [int(name) for name in watched]
    else:  # select: three bit sets of at most 1,024 descriptors
        size = (min(arguments[0], 1024) + 7) // 8
        sets = [proc.read_memory(pid, address, size) for address in arguments[1:4] if address]
        bits = [int.from_bytes(bitmap, "little") for bitmap in sets]
        numbers = [number for number in range(8 * size) if any(each >> number & 1 for each in bits)]
    return numbers if len(numbers) <= MOST_DESCRIPTORS else ()


# Memory, and how many processes the kernel killed for lack of it; it counts without names

# Names of files in control groups v2 and v1: in use, limit, unused cache, kills
UNIFIED = ("memory.current", "memory.max", "inactive_file", "memory.events")
SEPARATE = (
    *("memory.usage_in_bytes", "memory.limit_in_bytes"),
    *("total_inactive_file", "memory.oom_control"),
)
MACHINE = "/proc/vmstat"


def memory_use(pid: int, groups: Path = GROUPS) -> MemoryUse | None:
    """Read memory in use and the tightest limit on a process; about 100 microseconds.

    Cached files that were not used lately count as free: the kernel drops them first.
    """
    found = []
    with suppress(OSError, KeyError, ValueError):
        memory = psutil.virtual_memory()
        found.append(MemoryUse(memory.total - memory.available, memory.total, "machine"))
    for folder, unified in groups_of(pid, "memory", groups):
        in_use, most, unused, _ = UNIFIED if unified else SEPARATE
        # ``max``, which is no limit, raises ValueError
        with suppress(OSError, IndexError, ValueError):
            used, limit = (int(read_proc(str(folder / name))) for name in (in_use, most))
            rows = {row[0]: int(row[1]) for row in proc.read_table(str(folder / "memory.stat"))}
            found.append(MemoryUse(max(0, used - rows.get(unused, 0)), limit, "control group"))
    return min(found, key=lambda use: use.limit_bytes - use.used_bytes, default=None)


class KillCounter(Struct, frozen=True):
    """A counter of the kernel's out-of-memory killer, and its value when it was first read."""

    scope: str
    file: str
    kills: int

    def since(self) -> int:
        """Return how many processes were killed since; 0 also if the file is unreadable now."""
        return max(0, (_kills(self.file) or 0) - self.kills)


def kill_counter(pid: int, groups: Path = GROUPS) -> KillCounter | None:
    """Read the counter nearest to a process while it lives; None before Linux 4.13."""
    of_pid = groups_of(pid, "memory", groups)
    files = [str(folder / (UNIFIED if unified else SEPARATE)[-1]) for folder, unified in of_pid]
    for file in (*files, MACHINE):
        if (kills := _kills(file)) is not None:
            return KillCounter("machine" if file == MACHINE else "control group", file, kills)
    return None


def _kills(file: str) -> int | None:
    try:
        return next((int(row[1]) for row in proc.read_table(file) if row[0] == "oom_kill"), None)
    except (OSError, IndexError, ValueError):
        return None
