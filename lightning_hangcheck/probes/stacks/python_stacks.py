"""Python stacks of a process, taken by py-spy from outside.

A lock's own frame is C and shows in no Python stack, so the line on which a thread stands is read
too: does it take a lock?
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

import msgspec

from lightning_hangcheck.files.owned_file import read_regular
from lightning_hangcheck.model.evidence import Frame, Gap, ProcessStack, ThreadStack
from lightning_hangcheck.probes.proc.permission import Refusal, why_filtered, why_refused
from lightning_hangcheck.probes.proc.vitals import has_ended
from lightning_hangcheck.probes.stacks.py_spy import PySpyFailed, PySpyLate, find_py_spy
from lightning_hangcheck.probes.stacks.unpaused import DumpedThread, read_threads
from lightning_hangcheck.time_limit import Looked, NoAnswer, guarded, within

TAKES_LOCK = re.compile(rb"^\s*with\s[^()#]*:[^()#]*(#.*)?$|\.acquire\(")
TIME_LIMIT_S = 0.2
LARGEST_FILE = 4 * 1024 * 1024  # generated code; it would cost more than it tells


@lru_cache(maxsize=4096)
def takes_lock(file: str, line: int) -> bool:
    """Whether the line is a ``with`` statement that calls nothing, or calls ``acquire``.

    A thread whose innermost Python frame stands there, and which the kernel shows in a futex
    without a time limit, waits for a lock: whatever else such a line may call has a frame.

    Args:
        file: Path as the interpreter knows it; read once, at most 4 MiB, in at most 0.2 s.
        line: Counted from 1.

    Returns:
        False too where the file cannot be read.
    """
    if not file.startswith(os.sep):
        return False
    lines = _lines(file)
    return 0 < line <= len(lines) and TAKES_LOCK.search(lines[line - 1]) is not None


@lru_cache(maxsize=8)
def _lines(file: str) -> tuple[bytes, ...]:
    try:
        return within(TIME_LIMIT_S, lambda: _read(Path(file)))
    except (NoAnswer, OSError):
        return ()


def _read(path: Path) -> tuple[bytes, ...]:
    return tuple(read_regular(path, LARGEST_FILE).splitlines())


ABSENT = Refusal("py-spy is not installed beside this Python nor on PATH", "pip install py-spy")
PY_SPY = "py-spy"
"""Source of the stacks that `python_stacks` takes."""
ENDED = Refusal("the process has ended")


def python_stacks(pid: int, rank: int | None, time_limit_s: float) -> Looked[ProcessStack]:
    """Take the stacks of all Python threads of a process, which runs on meanwhile.

    Takes about 10 ms (55 ms with 200 threads). Threads that are stopped or in state D are read as
    well, and one that sleeps is not woken: the kernel goes on counting how long it has slept.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        time_limit_s: Seconds until py-spy is killed.

    Returns:
        The stacks, main thread first; None, and a gap with the way out, where there are none.
    """
    what = f"stack of pid {pid}"

    def look() -> Looked[ProcessStack]:
        answer = _take(pid, time_limit_s)
        if isinstance(answer, ProcessStack):
            return answer, ()
        return None, (Gap(what, rank, answer.why, "stack", answer.remedy),)

    return guarded("stack", what, rank, look)


def _take(pid: int, time_limit_s: float) -> ProcessStack | Refusal:
    """Return the stacks, or why there are none."""
    if has_ended(pid):
        return ENDED
    program = find_py_spy()
    if program is None:
        return ABSENT
    try:
        threads = read_threads(program, pid, time_limit_s)
    except PySpyLate as error:
        return Refusal(str(error))
    except PySpyFailed as error:
        return _why_failed(pid, str(error))
    except msgspec.MsgspecError as error:
        why = f"py-spy's answer is of another version than 0.4: {error}"
        return Refusal(why, "pip install -U py-spy")
    if not threads:
        return Refusal("it runs no Python thread")
    return ProcessStack(pid=pid, source=PY_SPY, threads=_main_first(pid, threads))


def _why_failed(pid: int, complaint: str) -> Refusal:
    if has_ended(pid):
        return ENDED
    return why_refused(pid) or why_filtered() or Refusal(f"py-spy: {complaint}")


def _main_first(pid: int, dumped: list[DumpedThread]) -> tuple[ThreadStack, ...]:
    """Put the main thread first; py-spy orders by an address."""
    ordered = sorted(
        dumped, key=lambda thread: (not _is_main(pid, thread), thread.os_thread_id or 0)
    )
    return tuple(_thread_stack(thread) for thread in ordered)


def _is_main(pid: int, thread: DumpedThread) -> bool:
    if thread.os_thread_id is None:
        return thread.thread_name == "MainThread"
    return thread.os_thread_id == pid


def _thread_stack(thread: DumpedThread) -> ThreadStack:
    innermost = thread.frames[0] if thread.frames else None
    return ThreadStack(
        tid=thread.os_thread_id,
        ident=thread.thread_id,
        name=thread.thread_name or "",
        active=thread.active,
        owns_gil=thread.owns_gil,
        takes_lock=innermost is not None and takes_lock(innermost.filename, innermost.line),
        frames=tuple(
            Frame(frame.name, frame.filename, frame.line) for frame in reversed(thread.frames)
        ),
    )
