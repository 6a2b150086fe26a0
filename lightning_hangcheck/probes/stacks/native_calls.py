"""What a thread does below Python: a last look at a rank that a hang names. It pauses the rank."""

from __future__ import annotations

import msgspec

from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.probes.stacks.left_stopped import why_stopped
from lightning_hangcheck.probes.stacks.py_spy import PySpyFailed, PySpyLate, dump, find_py_spy
from lightning_hangcheck.time_limit import Looked, guarded

MOST_CALLS = 12
"""The innermost: what a thread waits in is among them, what led there Python shows."""
ADDRESS = "0x"


class _Frame(msgspec.Struct):
    """A frame in py-spy's JSON (0.4): a native one has the library that it belongs to."""

    name: str
    module: str | None = None


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    os_thread_id: int | None = None


def native_calls(
    pid: int, rank: int | None, time_limit_s: float, tid: int | None = None
) -> Looked[tuple[str, ...]]:
    """Read the native calls inside a thread's innermost Python frame.

    Takes 0.1 to 0.8 s and pauses the process meanwhile: for a process that is stuck anyway. If
    it does not run on afterwards, a gap says why.

    Args:
        pid: The process; none of its threads may be stopped or in state D.
        rank: Whose, for gaps.
        time_limit_s: Seconds until py-spy is killed.
        tid: The thread; None for the main one.

    Returns:
        Names, outermost first; calls without a symbol are left out.
    """
    what = f"native calls of pid {pid}"

    def look() -> Looked[tuple[str, ...]]:
        program = find_py_spy()
        if program is None:
            return None, (
                Gap(what, rank, "py-spy is not installed", "native_calls", "pip install py-spy"),
            )
        try:
            calls, why = (
                innermost_calls(dump(program, pid, time_limit_s, native=True), tid or pid),
                "",
            )
        except (PySpyFailed, PySpyLate) as error:
            calls, why = None, f"py-spy: {error}"
        unseen = (why, why_stopped(pid))
        return calls, tuple(Gap(what, rank, one, "native_calls") for one in unseen if one)

    return guarded("native_calls", what, rank, look)


def innermost_calls(data: bytes, tid: int) -> tuple[str, ...]:
    """Read them from py-spy's JSON. Pure.

    Raises:
        msgspec.MsgspecError: It is of another form.
    """
    threads = json_decoder(list[_Thread]).decode(data)
    frames = next((one.frames for one in threads if one.os_thread_id == tid), [])
    calls: list[str] = []
    for frame in frames:
        if frame.module is None:
            break
        if not frame.name.startswith(ADDRESS):
            calls.append(frame.name)
    return tuple(reversed(calls[:MOST_CALLS]))
