"""Stacks as Python's faulthandler writes them, read back. Pure.

    Thread 0x00007f4a2e7fc6c0 [loader] (most recent call first):
      File "/home/ada/data.py", line 17 in __getitem__

The name in brackets is there from Python 3.14 on. Classes are not named; text beyond ASCII comes
as escapes; 100 frames a thread and 100 threads are written, the newest thread first: of a process
with more the main thread is missing, and a line of three dots says that some are.
"""

from __future__ import annotations

import re

from lightning_hangcheck.model.evidence import Frame, ThreadStack
from lightning_hangcheck.probes.stacks.python_stacks import takes_lock

THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)"
    r"(?: \[(?P<name>.*)\])? \(most recent call first\):$"
)
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


MOST_THREADS = 100
"""MAX_NTHREADS of Python/traceback.c, in all versions so far."""
CUT = "..."


def is_cut(text: str) -> bool:
    """Whether there were more threads than are written."""
    return CUT in text.splitlines()


def read_stacks(text: str, pid: int, main_thread: int) -> tuple[ThreadStack, ...]:
    """Read one answer of a process.

    Args:
        text: All of it.
        pid: Of the process: the kernel's id of its main thread. Those of the others are not told.
        main_thread: Its main thread, by Python's identifier.

    Returns:
        Its threads, the main one first; none where the main one is not among them.
    """
    threads: dict[int, tuple[str, list[Frame]]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        begins, frame = THREAD.match(line), FRAME.match(line)
        if begins is not None:
            frames = []
            threads[int(begins["ident"], 16)] = (begins["name"] or "", frames)
        elif frame is not None:
            frames.append(_frame(frame))
    if main_thread not in threads:
        return ()
    others = [ident for ident in threads if ident != main_thread]
    return (
        _stack(pid, main_thread, "MainThread", threads[main_thread][1]),
        *(
            _stack(None, ident, threads[ident][0] or f"0x{ident:x}", threads[ident][1])
            for ident in others
        ),
    )


def _frame(match: re.Match[str]) -> Frame:
    return Frame(_unescaped(match["function"]), _unescaped(match["file"]), int(match["line"]))


def _stack(tid: int | None, ident: int, name: str, frames: list[Frame]) -> ThreadStack:
    return ThreadStack(
        tid=tid,
        ident=ident,
        name=name,
        takes_lock=bool(frames) and takes_lock(frames[0].file, frames[0].line),
        frames=tuple(reversed(frames)),
    )


def _unescaped(text: str) -> str:
    return ESCAPE.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)
