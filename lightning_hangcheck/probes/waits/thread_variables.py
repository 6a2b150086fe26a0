"""What a thread waits for inside its process, where only its variables tell.

The kernel shows a futex for every thread that joins another or takes a lock. Which thread is joined
stands in the variables of ``Thread.join``, and whether the lock is one that the thread itself holds
in the source, as long as both lines name the same object.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.model.code_owner import is_standard
from lightning_hangcheck.probes.proc.process_tree import born_ns
from lightning_hangcheck.probes.source_code.code_notes import source_tree
from lightning_hangcheck.probes.source_code.held_locks import lock_taken, locks_held
from lightning_hangcheck.probes.stacks.py_spy import (
    SHORT_VALUES,
    PySpyFailed,
    PySpyLate,
    find_py_spy,
)
from lightning_hangcheck.probes.stacks.unpaused import read_threads
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lightning_hangcheck.model.evidence import Frame, ProcessStack, ThreadStack
    from lightning_hangcheck.probes.source_code.held_locks import NamedLock
    from lightning_hangcheck.probes.stacks.unpaused import DumpedFrame, DumpedThread

THREADING = "/threading.py"
ENTERS = "__enter__"
SOURCE_LIMIT_S = 0.5
DEEPEST = 32
"""Calls outwards in which the holder of a lock is looked for."""
OF_ADDRESS = " at 0x"
"""In what py-spy shows of an object that is no plain value: its class and where it lives."""
Pair = tuple["Frame", "NamedLock", "Frame", "NamedLock"]


def with_variables(
    stack: ProcessStack, waiting: Collection[int], time_limit_s: float
) -> ProcessStack:
    """Say which threads others join, and which take a lock that is theirs already.

    Asks py-spy for variables only where a thread joins another and there are several that it may
    be, or where only variables tell whether two lines name one lock; about 10 ms then. Of the
    variables no more than the addresses of objects is read, and nothing is kept.

    Args:
        stack: Just taken.
        waiting: Threads that wait in their process's own memory, without a time limit.
        time_limit_s: Seconds.
    """
    joining = [one for one in stack.threads if one.tid in waiting and _joins(one)]
    joining = joining if len(stack.threads) > len(joining) + 1 else []
    pairs = _pairs([one for one in stack.threads if one.tid in waiting], stack.pid, time_limit_s)
    if not joining and not pairs:
        return stack
    asked = joining or any(taken.own for _, taken, _, _ in pairs.values())
    dumped = {one.os_thread_id: one for one in _dumped(stack.pid, time_limit_s)} if asked else {}
    born = {address: tid for tid, one in dumped.items() if (address := _own_address(one))}
    awaited = {one.tid: _joined_address(dumped.get(one.tid)) for one in joining}
    threads = (
        replace(
            one,
            joined=born.get(awaited.get(one.tid, "")),
            holds_lock=one.tid in pairs and _is_one_lock(pairs[one.tid], dumped.get(one.tid)),
        )
        for one in stack.threads
    )
    return replace(stack, threads=tuple(threads))


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


def _pairs(threads: Sequence[ThreadStack], pid: int, time_limit_s: float) -> dict[int | None, Pair]:
    """Find threads that take a lock by a name by which a call further out holds one."""
    taking = [one for one in threads if one.takes_lock or _enters(one)]
    since_s = time.time() - (time.monotonic_ns() - born_ns(pid)) / NANOSECONDS
    found: dict[int | None, Pair] = {}
    if taking:
        with suppress(NoAnswer):
            limit_s = min(time_limit_s, SOURCE_LIMIT_S)
            within(limit_s, lambda: found.update(_all_pairs(taking, since_s)))
    return found


def _all_pairs(
    threads: Sequence[ThreadStack], unchanged_since_s: float
) -> Iterator[tuple[int | None, Pair]]:
    for thread in threads:
        frames = thread.frames[:-1] if _enters(thread) else thread.frames
        inner = frames[-1]
        tree = source_tree(inner.file, unchanged_since_s)
        taken = lock_taken(tree, inner.line) if tree is not None else None
        if tree is None or taken is None:
            continue
        outer = (one for one in frames[-DEEPEST:-1] if one.file == inner.file)
        held = ((one, lock) for one in outer for lock in locks_held(tree, one.line))
        same = ((one, lock) for one, lock in held if lock.text == taken.text)
        for frame, lock in same:
            if lock.own == taken.own and (taken.own or lock.scope is taken.scope):
                yield thread.tid, (inner, taken, frame, lock)
                break


def _enters(thread: ThreadStack) -> bool:
    """Whether it is in a ``with`` of an object of Python's own library, as a condition's."""
    inner = thread.frames[-1] if len(thread.frames) > 1 else None
    return inner is not None and is_standard(inner.file) and inner.function.endswith(ENTERS)


def _is_one_lock(pair: Pair, thread: DumpedThread | None) -> bool:
    """Whether both lines mean one object: a variable of each call must have the same value."""
    inner, taken, outer, held = pair
    if not taken.own:
        return True
    frames = thread.frames if thread is not None else []
    values = [
        next((_address(one, name) for one in frames if _is_at(one, at)), "")
        for at, name in ((inner, taken.root), (outer, held.root))
    ]
    return bool(values[0]) and values[0] == values[1]


def _is_at(dumped: DumpedFrame, frame: Frame) -> bool:
    return (dumped.filename, dumped.line, dumped.name) == (frame.file, frame.line, frame.function)


def _dumped(pid: int, time_limit_s: float) -> list[DumpedThread]:
    program = find_py_spy()
    if program is None or time_limit_s <= 0:
        return []
    try:
        return read_threads(program, pid, time_limit_s, SHORT_VALUES)
    except (PySpyFailed, PySpyLate, msgspec.MsgspecError):
        return []
