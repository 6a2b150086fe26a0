"""The kernel's view of a process and its threads: what they wait in, without stopping them."""

from __future__ import annotations

import math
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.model.evidence import (
    PAGE_FAULT,
    Gap,
    ProcessState,
    ThreadState,
    WaitTarget,
)
from lightning_hangcheck.probes.memory import memory_use
from lightning_hangcheck.probes.proc.files import GONE, read_proc, read_stat
from lightning_hangcheck.probes.proc.permission import Refusal, why_refused
from lightning_hangcheck.probes.proc.vitals import io_bytes
from lightning_hangcheck.probes.waits.system_calls import waits_for, wakes_at
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.time_limit import Looked, guarded

if TYPE_CHECKING:
    from lightning_hangcheck.machine.process_stat import StatLine
    from lightning_hangcheck.model.evidence import ProcessStack

# A rank with CUDA, NCCL and data loading has 50 to 200 threads; more say nothing new.
MOST_THREADS = 256


class _Call(NamedTuple):
    """A system call in progress; number None where the thread is in none."""

    number: int | None
    arguments: tuple[int, ...]


NO_CALL = _Call(None, ())
OF_TIMERS = sum(1 << (number - 1) for number in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF))
NOT_COUNTED = Refusal("the kernel does not count them (CONFIG_TASK_IO_ACCOUNTING is off)")


def kernel_state(pid: int, rank: int | None, time_limit_s: float) -> Looked[ProcessState]:
    """Read the state of a process and of up to 256 of its threads, the main thread first.

    About 30 microseconds a thread. No file that it reads takes a lock of the process.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        time_limit_s: Seconds; threads that are not read by then are counted as left out.

    Returns:
        The state, None where the process has ended; and what could not be seen.
    """
    deadline = time.monotonic() + time_limit_s
    what = f"kernel state of pid {pid}"
    return guarded("kernel_state", what, rank, lambda: _look(pid, rank, what, deadline))


def with_threads_of(state: ProcessState, stack: ProcessStack) -> ProcessState:
    """Add the threads that run Python where time, or their number, did not let them be read.

    They are few, and what a process waits for is told by them: without one, what it waits for
    would change from look to look on a busy machine.

    Args:
        state: As `kernel_state` read it.
        stack: Taken just after it.
    """
    if not state.threads_left_out:
        return state
    read = {one.tid for one in state.threads}
    tids = [one.tid for one in stack.threads if one.tid is not None and one.tid not in read]
    shown = why_refused(state.pid) is None
    found = _look_at_threads(state.pid, tids[:MOST_THREADS], calls_shown=shown)
    left_out = max(0, state.threads_left_out - len(found))
    return replace(state, threads=(*state.threads, *found), threads_left_out=left_out)


def led_by(state: ProcessState, tid: int | None) -> ProcessState:
    """Put another thread than the main one first, and add what is only read of the first.

    Args:
        state: As `kernel_state` read it.
        tid: Of the thread that trains; None where that is not known.
    """
    first = next((one for one in state.threads if one.tid == tid), None)
    if first is None or first is state.threads[0]:
        return state
    queued_s, turns = _schedule(f"/proc/{state.pid}/task/{tid}")
    rest = (one for one in state.threads if one is not first)
    return replace(state, threads=(replace(first, queued_s=queued_s, turns=turns), *rest))


def _look(pid: int, rank: int | None, what: str, deadline: float) -> Looked[ProcessState]:
    try:
        line = read_stat(pid)
        tids = _threads(pid)
    except GONE:
        return None, (Gap(what, rank, "the process has ended", "kernel_state"),)
    except PermissionError:
        why = "/proc hides it: run as its user, or as root"
        return None, (Gap(what, rank, why, "kernel_state"),)
    counted = io_bytes(pid)
    refusal = None if line.state in "ZX" else why_refused(pid)
    threads = _look_at_threads(
        pid,
        tids[:MOST_THREADS],
        deadline,
        calls_shown=refusal is None,
        bytes_counted=counted is not None,
    )
    unseen = _unseen(pid, rank, refusal, counted_bytes=counted is not None)
    return _process_state(pid, line, counted, threads, len(tids)), unseen


def _unseen(
    pid: int, rank: int | None, refusal: Refusal | None, *, counted_bytes: bool
) -> tuple[Gap, ...]:
    missing = []
    if refusal is not None:
        missing.append((f"system calls of pid {pid}", refusal))
    if not counted_bytes:
        missing.append((f"bytes read and written by pid {pid}", refusal or NOT_COUNTED))
    return tuple(Gap(what, rank, why, "kernel_state", remedy) for what, (why, remedy) in missing)


def _threads(pid: int) -> list[int]:
    tids = sorted(map(int, os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208 - a hot path
    return sorted(tids, key=lambda tid: tid != pid)


def _process_state(
    pid: int,
    line: StatLine,
    counted: tuple[int, int] | None,
    threads: list[ThreadState],
    thread_count: int,
) -> ProcessState:
    read_bytes, written_bytes = counted or (None, None)
    return ProcessState(
        pid=pid,
        parent_pid=line.parent_pid,
        state=line.state,
        started_ticks=line.started_ticks,
        cpu_s=line.cpu_s,
        rss_bytes=line.rss_bytes,
        major_faults=line.major_faults,
        exit_code=_failure(line),
        memory=memory_use(pid),
        catches_timers=bool(line.caught_signals & OF_TIMERS),
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        threads=tuple(threads),
        threads_left_out=thread_count - len(threads),
    )


def _failure(line: StatLine) -> int | None:
    failed = line.state in "ZX" and line.exit_status
    return os.waitstatus_to_exitcode(line.exit_status) if failed else None


def _look_at_threads(
    pid: int,
    tids: list[int],
    deadline: float = math.inf,
    *,
    calls_shown: bool,
    bytes_counted: bool = False,
) -> list[ThreadState]:
    threads: list[ThreadState] = []
    for tid in tids:
        if threads and time.monotonic() > deadline:
            break
        try:
            threads.append(_look_at_thread(pid, tid, calls_shown, bytes_counted))
        except OSError:
            continue  # this thread ended since it was listed
    return threads


def _look_at_thread(pid: int, tid: int, calls_shown: bool, bytes_counted: bool) -> ThreadState:
    folder = f"/proc/{pid}/task/{tid}"
    line = read_stat(pid, tid)
    wchan = read_proc(f"{folder}/wchan").decode(errors="replace").removeprefix("0")
    call = _read_call(f"{folder}/syscall") if calls_shown else NO_CALL
    queued_s, turns = _schedule(folder) if tid == pid else (None, None)
    counted = io_bytes(pid, tid) if bytes_counted else None
    return ThreadState(
        tid=tid,
        state=line.state,
        cpu_s=line.cpu_s,
        turns=turns,
        queued_s=queued_s,
        wchan=wchan,
        syscall=call.number,
        arguments=call.arguments,
        waits_for=_targets(pid, line.state, call, wchan),
        wakes_ns=None if call.number is None else wakes_at(pid, call.number, call.arguments),
        moved_bytes=sum(counted) if counted is not None else None,
    )


def _schedule(folder: str) -> tuple[float | None, int | None]:
    """Read the second and third field of schedstat; all are 0 where the kernel does not count."""
    try:
        queued_ns, turns = map(int, read_proc(f"{folder}/schedstat").split()[1:3])
    except (OSError, ValueError):
        return None, None
    return (queued_ns / NANOSECONDS, turns) if turns else (None, None)


def _targets(pid: int, state: str, call: _Call, wchan: str) -> tuple[WaitTarget, ...]:
    """What a thread waits for. Uninterruptible and in no call, it waits for a page from disk."""
    if call.number is not None:
        return waits_for(pid, call.number, call.arguments, wchan)
    in_fault = state == "D" and wchan != ""
    return (WaitTarget(call=PAGE_FAULT, kind="file"),) if in_fault else ()


def _read_call(path: str) -> _Call:
    """Read the call: ``running``, ``-1`` and two registers, or its number and six arguments."""
    try:
        fields = read_proc(path).split()
    except OSError:
        return NO_CALL
    if len(fields) < 7 or fields[0].startswith(b"-"):
        return NO_CALL
    return _Call(int(fields[0]), tuple(int(field, 16) for field in fields[1:7]))
