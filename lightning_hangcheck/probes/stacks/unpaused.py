"""py-spy's dump of a process that runs on meanwhile: what came out torn is read again.

Nothing is paused, so a thread that calls or returns during the few milliseconds of the reading can
leave a chain of calls without its outer end, memory that is no name any more, or an error: one to
two dumps in a hundred of a thread that does nothing but call (py-spy 0.4.3, Python 3.11). A thread
that waits cannot be torn.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.probes.proc.files import read_memory
from lightning_hangcheck.probes.proc.permission import why_refused
from lightning_hangcheck.probes.proc.vitals import has_ended, is_thread, thread_ids
from lightning_hangcheck.probes.stacks.py_spy import PySpyFailed, dump

if TYPE_CHECKING:
    from pathlib import Path

MOST_DUMPS = 3
"""By the measurement above three torn ones in a row come once in a hundred thousand reads on an
idle machine; on a busy one, where a read takes longer, more often."""
LARGEST_STRUCTURE = 1024
"""Bytes of a thread's own structure in which its id is looked for: glibc has it at 720 (x86-64)."""
WORD = 4


class DumpedLocal(msgspec.Struct):
    """A local variable in py-spy's JSON (0.4)."""

    name: str
    repr: str | None = None


class DumpedFrame(msgspec.Struct):
    """A frame in py-spy's JSON (0.4): ``name`` is qualified by its class where py-spy knows it.

    Attributes:
        is_shim_entry: Native code called it: so it is with the outermost of every thread.
    """

    name: str
    filename: str
    line: int
    locals: list[DumpedLocal] | None = None
    is_shim_entry: bool = True


class DumpedThread(msgspec.Struct):
    """A thread in py-spy's JSON (0.4); frames innermost first."""

    frames: list[DumpedFrame]
    os_thread_id: int | None = None
    thread_id: int = 0
    thread_name: str | None = None
    active: bool = False
    owns_gil: bool = False


def read_threads(
    program: Path, pid: int, time_limit_s: float, values: str | None = None
) -> list[DumpedThread]:
    """Read all Python threads of a process without pausing it, again where they came out torn.

    Args:
        program: py-spy.
        pid: The process.
        time_limit_s: Seconds for all attempts together.
        values: Local variables too, as of `dump`.

    Raises:
        PySpyFailed: It complained each time, or all came out torn.
        PySpyLate: It took longer.
        msgspec.MsgspecError: Its answer is of another form.
    """
    deadline = time.monotonic() + time_limit_s
    without_calls: set[int | None] = set()
    failure = PySpyFailed("no time is left")
    for _ in range(MOST_DUMPS):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        try:
            data = dump(program, pid, left_s, values=values)
        except PySpyFailed as error:
            if has_ended(pid) or why_refused(pid) is not None:
                raise
            failure = error
            continue
        threads = json_decoder(list[DumpedThread]).decode(data)
        lost = {one.os_thread_id for one in threads if one.active and not one.frames}
        if not any(is_torn(one) for one in threads) and lost <= without_calls:
            return _with_our_ids(pid, threads)
        without_calls |= lost
        failure = PySpyFailed("the process ran on while it was read, and what was read is torn")
    raise failure


def _with_our_ids(pid: int, threads: list[DumpedThread]) -> list[DumpedThread]:
    """Name threads as the kernel names them to us: py-spy reads their ids in the process."""
    ours = thread_ids(pid)
    unnamed = [one.thread_id for one in threads if one.os_thread_id is None]
    found = _ids_in_memory(pid, unnamed, ours) if unnamed else {}
    named = ((one, one.os_thread_id or found.get(one.thread_id)) for one in threads)
    return [
        replace(one, os_thread_id=ours.get(tid, tid) if tid is not None else None)
        for one, tid in named
    ]


def _ids_in_memory(pid: int, addresses: list[int], ours: dict[int, int]) -> dict[int, int]:
    """Read the kernel's ids of threads from the C library's structures of them, by their addresses.

    Python 3.10 keeps no such id. Where in its structure a thread has it, the main one's tells: that
    alone is the process's own.

    Args:
        pid: The process.
        addresses: Of the structures: what ``threading.get_ident`` tells.
        ours: As `thread_ids` returns them.
    """
    main = next((inner for inner, outer in ours.items() if outer == pid), pid)
    words = {one: _words(read_memory(pid, one, LARGEST_STRUCTURE)) for one in addresses}
    place = min((one.index(main) for one in words.values() if main in one), default=None)
    if place is None:
        return {}
    tids = {address: one[place] for address, one in words.items() if place < len(one)}
    return {address: tid for address, tid in tids.items() if is_thread(pid, ours.get(tid, tid))}


def _words(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"={len(data) // WORD}i", data[: len(data) // WORD * WORD])


def is_torn(thread: DumpedThread) -> bool:
    """Whether no thread can stand like this: its outer end is missing, or a name is no text."""
    if not thread.frames:
        return False
    broken = any(
        not frame.name or "\0" in frame.name or "\0" in frame.filename for frame in thread.frames
    )
    return broken or not thread.frames[-1].is_shim_entry
