"""The kernel's view of a process: its threads, what they wait in, and the memory left to it.

Nothing is stopped for it, and no file that is read takes a lock of the process.
"""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.look.proc import (
    GONE,
    Refusal,
    io_bytes,
    read_proc,
    read_stat,
    read_table,
    thread_ids,
    why_refused,
)
from lightning_hangcheck.look.system_calls import waits_for, wakes_at
from lightning_hangcheck.machine import GROUPS, groups_of
from lightning_hangcheck.model.evidence import (
    PAGE_FAULT,
    Gap,
    MemoryUse,
    ProcessState,
    ThreadState,
    WaitTarget,
)
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.time_limit import Looked, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lightning_hangcheck.machine import StatLine
    from lightning_hangcheck.model.evidence import ProcessStack

MOST_THREADS = 256
"""A rank with CUDA, NCCL and data loading has 50 to 200 threads; more say nothing new."""
POLLERS = frozenset({"TP_SHM_reactor", "TP_IBV_reactor"})
"""Threads of torch's RPC (tensorpipe's reactor.cc) that look for messages without end, by a core
each where cores are free: whether the rank waits or works, they are the same."""
OF_TIMERS = sum(
    1 << (number - 1)
    for number in (
        *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO),
    )
)
NOT_COUNTED = Refusal("the kernel does not count them (CONFIG_TASK_IO_ACCOUNTING is off)")


def kernel_state(pid: int, rank: int | None, time_limit_s: float) -> Looked[ProcessState]:
    """Read the state of a process and of up to 256 of its threads, the main thread first.

    About 30 microseconds a thread. Threads that are not read in time are counted as left out.
    """
    deadline = time.monotonic() + time_limit_s
    what = f"kernel state of pid {pid}"
    return guarded("kernel_state", what, rank, lambda: _look(pid, rank, what, deadline))


def _look(pid: int, rank: int | None, what: str, deadline: float) -> Looked[ProcessState]:
    try:
        line = read_stat(pid)
        tids = thread_ids(pid)
    except GONE:
        return None, (Gap(what, rank, "the process has ended", "kernel_state"),)
    except PermissionError:
        why = "/proc hides it: run as its user, or as root"
        return None, (Gap(what, rank, why, "kernel_state"),)
    ended = line.state in "ZX"
    counted = io_bytes(pid)
    refusal = None if ended else why_refused(pid)
    threads, polled_s = _look_at_threads(
        pid, tids[:MOST_THREADS], deadline, calls=refusal is None, bytes_=counted is not None
    )
    read_bytes, written_bytes = counted or (None, None)
    state = ProcessState(
        pid=pid,
        parent_pid=line.parent_pid,
        state=line.state,
        started_ticks=line.started_ticks,
        cpu_s=max(0.0, line.cpu_s - sum(polled_s)),
        rss_bytes=line.rss_bytes,
        major_faults=line.major_faults,
        exit_code=os.waitstatus_to_exitcode(line.exit_status)
        if ended and line.exit_status
        else None,
        catches_timers=bool(line.caught_signals & OF_TIMERS),
        polls=bool(polled_s),
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        threads=tuple(threads),
        threads_left_out=len(tids) - len(polled_s) - len(threads),
    )
    unseen = []
    if refusal is not None:
        unseen.append((f"system calls of pid {pid}", refusal))
    if counted is None:
        unseen.append((f"bytes read and written by pid {pid}", refusal or NOT_COUNTED))
    return state, tuple(Gap(one, rank, why, "kernel_state", way) for one, (why, way) in unseen)


def with_threads_of(state: ProcessState, stack: ProcessStack) -> ProcessState:
    """Add the threads that run Python where time, or their number, did not let them be read.

    They are few, and what a process waits for is told by them: without one, what it waits for
    would change from look to look on a busy machine.
    """
    if not state.threads_left_out:
        return state
    read = {one.tid for one in state.threads}
    tids = [one.tid for one in stack.threads if one.tid is not None and one.tid not in read]
    found, _ = _look_at_threads(
        state.pid, tids[:MOST_THREADS], math.inf, calls=why_refused(state.pid) is None, bytes_=False
    )
    left_out = max(0, state.threads_left_out - len(found))
    return replace(state, threads=(*state.threads, *found), threads_left_out=left_out)


def led_by(state: ProcessState, tid: int | None) -> ProcessState:
    """Put the thread that trains first, and add what is only read of the first."""
    first = next((one for one in state.threads if one.tid == tid), None)
    if first is None or first is state.threads[0]:
        return state
    queued_s, turns = _schedule(f"/proc/{state.pid}/task/{tid}")
    rest = (one for one in state.threads if one is not first)
    return replace(state, threads=(replace(first, queued_s=queued_s, turns=turns), *rest))


def _look_at_threads(
    pid: int, tids: Sequence[int], deadline: float, *, calls: bool, bytes_: bool
) -> tuple[list[ThreadState], list[float]]:
    """Look at threads; of each that polls by design, return its processor time alone."""
    threads: list[ThreadState] = []
    polled_s: list[float] = []
    for tid in tids:
        if threads and time.monotonic() > deadline:
            break
        try:
            line = read_stat(pid, tid)
            if line.name in POLLERS:
                polled_s.append(line.cpu_s)
            else:
                threads.append(_look_at_thread(pid, tid, line, calls, bytes_))
        except OSError:
            continue  # this thread ended since it was listed
    return threads, polled_s


def _look_at_thread(pid: int, tid: int, line: StatLine, calls: bool, bytes_: bool) -> ThreadState:
    folder = f"/proc/{pid}/task/{tid}"
    wchan = read_proc(f"{folder}/wchan").decode(errors="replace").removeprefix("0")
    # ``running``, ``-1`` and two registers, or the number of the call and six arguments
    fields: list[bytes] = []
    if calls:
        with suppress(OSError):
            fields = read_proc(f"{folder}/syscall").split()
    number: int | None = None
    arguments: tuple[int, ...] = ()
    if len(fields) > 6 and not fields[0].startswith(b"-"):
        number, arguments = int(fields[0]), tuple(int(field, 16) for field in fields[1:7])
    queued_s, turns = _schedule(folder) if tid == pid else (None, None)
    counted = io_bytes(pid, tid) if bytes_ else None
    if number is not None:
        targets = waits_for(pid, number, arguments, wchan)
    else:  # uninterruptible and in no call, it waits for a page from disk
        in_fault = line.state == "D" and wchan != ""
        targets = (WaitTarget(call=PAGE_FAULT, kind="file"),) if in_fault else ()
    return ThreadState(
        tid=tid,
        name=line.name,
        state=line.state,
        cpu_s=line.cpu_s,
        turns=turns,
        queued_s=queued_s,
        wchan=wchan,
        syscall=number,
        arguments=arguments,
        waits_for=targets,
        wakes_ns=None if number is None else wakes_at(pid, number, arguments),
        moved_bytes=sum(counted) if counted is not None else None,
    )


def _schedule(folder: str) -> tuple[float | None, int | None]:
    """Read the second and third field of schedstat; all are 0 where the kernel does not count."""
    try:
        queued_ns, turns = map(int, read_proc(f"{folder}/schedstat").split()[1:3])
    except (OSError, ValueError):
        return None, None
    return (queued_ns / NANOSECONDS, turns) if turns else (None, None)


# Memory, and whether the kernel ended processes for want of it, which it counts without names


# Names of files in the two versions of control groups: in use, limit, cached, kills
UNIFIED = ("memory.current", "memory.max", "inactive_file", "memory.events")
SEPARATE = (
    *("memory.usage_in_bytes", "memory.limit_in_bytes"),
    *("total_inactive_file", "memory.oom_control"),
)
MACHINE = "/proc/vmstat"
KILLS = "oom_kill"


def memory_use(pid: int, groups: Path = GROUPS) -> MemoryUse | None:
    """Read memory in use and the tightest limit that holds for a process; about 100 microseconds.

    Cached files that nobody used lately count as free: the kernel drops them first.
    """
    found = []
    with suppress(OSError, KeyError, IndexError, ValueError):
        rows = {row[0]: int(row[1]) * 1024 for row in read_table("/proc/meminfo")}
        used = rows["MemTotal:"] - rows["MemAvailable:"]
        found.append(MemoryUse(used, rows["MemTotal:"], "machine"))
    for folder, unified in groups_of(pid, "memory", groups):
        in_use, most, unused, _ = UNIFIED if unified else SEPARATE
        # ``max``, which is no limit, is a ValueError
        with suppress(OSError, IndexError, ValueError):
            used, limit = (int(read_proc(str(folder / name))) for name in (in_use, most))
            rows = {row[0]: int(row[1]) for row in read_table(str(folder / "memory.stat"))}
            found.append(MemoryUse(max(0, used - rows.get(unused, 0)), limit, "control group"))
    return min(found, key=lambda use: use.limit_bytes - use.used_bytes, default=None)


class KillCounter(Struct, frozen=True):
    """A counter of the kernel's out-of-memory killer, and what it showed when it was first read."""

    scope: str
    file: str
    kills: int

    def since(self) -> int:
        """Return how many processes were ended since; 0 too where it can no longer be read."""
        return max(0, (_kills(self.file) or 0) - self.kills)


def kill_counter(pid: int, groups: Path = GROUPS) -> KillCounter | None:
    """Read the counter nearest to a process, as long as it lives; None before Linux 4.13."""
    of_pid = groups_of(pid, "memory", groups)
    files = [str(folder / (UNIFIED if unified else SEPARATE)[-1]) for folder, unified in of_pid]
    for file in (*files, MACHINE):
        if (kills := _kills(file)) is not None:
            return KillCounter("machine" if file == MACHINE else "control group", file, kills)
    return None


def _kills(file: str) -> int | None:
    try:
        return next((int(row[1]) for row in read_table(file) if row[0] == KILLS), None)
    except (OSError, IndexError, ValueError):
        return None
