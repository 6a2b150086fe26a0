"""What a thread waits for inside its process, where only its variables tell.

The kernel shows a futex for every thread that joins another or takes a lock. Which thread is joined
stands in the variables of ``Thread.join``, and who has the lock in the source, as long as variables
tell that both lines name the same object.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.probes.stacks.py_spy import (
    SHORT_VALUES,
    PySpyFailed,
    PySpyLate,
    find_py_spy,
)
from lightning_hangcheck.probes.stacks.unpaused import read_threads
from lightning_hangcheck.probes.waits.locks.lock_holders import awaited_locks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.model.evidence import (
        ProcessStack,
        ProcessState,
        TargetKind,
        ThreadStack,
    )
    from lightning_hangcheck.probes.stacks.unpaused import DumpedFrame, DumpedThread

THREADING = "/threading.py"
OF_ADDRESS = " at 0x"
"""In what py-spy shows of an object that is no plain value: its class and where it lives."""


def with_variables(stack: ProcessStack, kernel: ProcessState, time_limit_s: float) -> ProcessStack:
    """Say which threads others join, and who has the locks that threads take.

    Asks py-spy for variables only where a thread joins another and there are several that it may
    be, or where only variables tell whether two lines name one lock; about 10 ms then. Of the
    variables no more than the addresses of objects is read, and nothing is kept.

    Args:
        stack: Just taken.
        kernel: Likewise.
        time_limit_s: Seconds.
    """
    endless = _waiting(kernel, "futex", "shared")
    joining = [one for one in stack.threads if one.tid in endless and _joins(one)]
    joining = joining if len(stack.threads) > len(joining) + 1 else []
    locks = awaited_locks(stack, _waiting(kernel, "futex"), time_limit_s)
    if not joining and not locks:
        return stack
    asked = joining or any(one.by_variables for one in locks.values())
    dumped = {one.os_thread_id: one for one in _dumped(stack.pid, time_limit_s)} if asked else {}
    born = {address: tid for tid, one in dumped.items() if (address := _own_address(one))}
    awaited = {one.tid: _joined_address(dumped.get(one.tid)) for one in joining}
    holders = {tid: one.holder(partial(_address_at, dumped)) for tid, one in locks.items()}
    threads = (
        replace(
            one,
            joined=born.get(awaited.get(one.tid, "")),
            holds_lock=holder is not None and holder == one.tid,
            held_by=holder if holder != one.tid else None,
        )
        for one in stack.threads
        for holder in [holders.get(one.tid) if one.tid is not None else None]
    )
    return replace(stack, threads=tuple(threads))


def _waiting(kernel: ProcessState, *kinds: TargetKind) -> frozenset[int]:
    """Threads that wait, without a time limit, for a word of memory.

    That of who joins a thread looks like a shared one until all processes were looked at; that of a
    lock of Python's threads does not.
    """
    return frozenset(
        one.tid for one in kernel.threads if any(target.kind in kinds for target in one.waits_for)
    )


def _joins(thread: ThreadStack) -> bool:
    return any(map(_is_join, thread.frames[-2:]))


def _is_join(frame: Frame) -> bool:
    return frame.file.endswith(THREADING) and frame.function.rpartition(".")[2] == "join"


def _own_address(thread: DumpedThread) -> str:
    """Return the address of the object that a thread runs; empty of one that Python began not."""
    outermost = thread.frames[-1] if thread.frames else None
    began = outermost is not None and outermost.filename.endswith(THREADING)
    return _address(outermost, "self") if began and outermost is not None else ""


def _joined_address(thread: DumpedThread | None) -> str:
    frames = thread.frames if thread is not None else []
    joins = (one for one in frames if one.name.rpartition(".")[2] == "join")
    return next((_address(one, "self") for one in joins), "")


def _address(frame: DumpedFrame, name: str) -> str:
    """Return where a variable's object lives; empty of plain values, which may be equal copies."""
    shown = next((one.repr or "" for one in frame.locals or () if one.name == name), "")
    return shown.rpartition(OF_ADDRESS)[2] if OF_ADDRESS in shown else ""


def _address_at(
    dumped: Mapping[int | None, DumpedThread], tid: int | None, depth: int, frame: Frame, name: str
) -> str:
    """Return where a variable's object lives, of a call that still stands where it stood."""
    frames = dumped[tid].frames[::-1] if tid in dumped else []
    at = frames[depth] if depth < len(frames) else None
    same = at is not None and Frame(at.name, at.filename, at.line) == frame
    return _address(at, name) if same and at is not None else ""


def _dumped(pid: int, time_limit_s: float) -> list[DumpedThread]:
    program = find_py_spy()
    if program is None or time_limit_s <= 0:
        return []
    try:
        return read_threads(program, pid, time_limit_s, SHORT_VALUES)
    except (PySpyFailed, PySpyLate, msgspec.MsgspecError):
        return []
