"""Python stacks that a process writes itself, asked by a signal: where py-spy may not read it.

What the process does with that signal /proc tells everybody, without any permission; it is read
first, because a signal without a handler would end the process. The answer is faulthandler's:

    Thread 0x00007f4a2e7fc6c0 [loader] (most recent call first):
      File "/home/ada/data.py", line 17 in __getitem__

The name in brackets is there from Python 3.14 on. Classes are not named; text beyond ASCII comes
as escapes; 100 frames a thread and 100 threads are written, the newest thread first: of a process
with more the main thread is missing, and a line of three dots says that some are.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.files.safe import open_owned
from lightning_hangcheck.look.proc import read_status, thread_ids, vitals
from lightning_hangcheck.look.source import Sources
from lightning_hangcheck.model.evidence import Frame, Gap, ProcessStack, ThreadStack
from lightning_hangcheck.session.session import StackOffer, find_offer
from lightning_hangcheck.time_limit import Looked, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = "faulthandler"
WITHOUT = "no class names, local variables or child processes"
LIMIT_S = 2.0
"""An answer takes 5 to 30 ms where the process runs at all."""
POLL_S = 0.004
LARGEST_ANSWER = 4 * 1024 * 1024  # 100 threads of 100 frames, 400 bytes each


class _NoStacks(Exception):
    """The process cannot be asked, or gave no answer; the message says why."""


def signalled_stacks(
    pid: int, rank: int | None, time_limit_s: float, refused: tuple[Gap, ...] = ()
) -> Looked[ProcessStack]:
    """Have a process write its stacks, if it offers to, where py-spy was refused them.

    It is sent a signal only where it is the very process that offered and still has its handler.
    System calls that a signal interrupts for good (poll, select) come back early with EINTR, from
    which Python, gloo and NCCL go on.
    """
    what = f"stack of pid {pid} by signal"
    offer = find_offer(pid)
    if offer is None:
        return None, refused

    def look() -> Looked[ProcessStack]:
        try:
            return _ask(offer, time.monotonic() + min(LIMIT_S, time_limit_s)), ()
        except (_NoStacks, OSError) as error:
            return None, (Gap(what, rank, str(error), "stack"),)

    stack, gaps = guarded("stack", what, rank, look)
    if stack is None:
        return None, refused + gaps
    instead = f"the rank wrote its stack itself instead, by faulthandler: {WITHOUT}"
    return stack, tuple(replace(gap, why=f"{gap.reason}; {instead}", remedy="") for gap in refused)


def _ask(offer: StackOffer, deadline: float) -> ProcessStack:
    process = os.pidfd_open(offer.pid)
    try:
        # a signal without a handler would end the process; an exec takes handlers away
        seen = vitals(offer.pid)
        if seen is None or seen.started_ticks != offer.started_ticks or seen.state in "ZX":
            raise _NoStacks("the process has ended")
        if seen.state in "Tt":
            raise _NoStacks("it is stopped, so it answers no signal")
        if not _has(offer.pid, "SigCgt", offer.signal):
            raise _NoStacks(f"it no longer handles signal {offer.signal}")
        if _has(offer.pid, "ShdPnd", offer.signal):
            raise _NoStacks("it has not answered an earlier request yet")
        before = blocking_threads(offer.pid, offer.signal)
        os.truncate(offer.answers, 0)
        signal.pidfd_send_signal(process, offer.signal)
    finally:
        os.close(process)
    # whoever takes the signal blocks it until all is written; only then the answer is whole
    answers = Path(offer.answers)
    while (
        _has(offer.pid, "ShdPnd", offer.signal)
        or answers.stat().st_size == 0
        or blocking_threads(offer.pid, offer.signal) - before
    ):
        if time.monotonic() > deadline:
            raise _NoStacks(f"it did not answer signal {offer.signal} in time")
        time.sleep(POLL_S)
    with os.fdopen(open_owned(answers), "rb") as file:
        text = file.read(LARGEST_ANSWER).decode("ascii", errors="replace")
    threads = read_stacks(text, offer.pid, offer.main_thread)
    if threads:
        return ProcessStack(pid=offer.pid, source=SOURCE, threads=threads)
    if "..." in text.splitlines():
        raise _NoStacks(
            f"it has more than {MOST_THREADS} threads, and faulthandler writes only the newest "
            f"{MOST_THREADS}: its main thread is not among them"
        )
    raise _NoStacks("its main thread is not among those that it wrote")


def blocking_threads(pid: int, number: int) -> frozenset[int]:
    """Return the threads that block the signal; while a handler runs, its thread does.

    About 30 microseconds a thread. OSError where the process is gone.
    """
    found = set()
    for tid in thread_ids(pid):
        try:
            if _has(pid, "SigBlk", number, tid):
                found.add(tid)
        except OSError:
            continue  # this thread ended since it was listed
    return frozenset(found)


def _has(pid: int, field: str, number: int, tid: int | None = None) -> bool:
    """Whether a set of signals in a status file has this one."""
    return bool(int(read_status(pid, tid).get(field, "0"), 16) >> (number - 1) & 1)


# What faulthandler writes. Pure

THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)"
    r"(?: \[(?P<name>.*)\])? \(most recent call first\):$"
)
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
MOST_THREADS = 100
"""MAX_NTHREADS of Python/traceback.c, in all versions so far."""


def read_stacks(text: str, pid: int, main_thread: int) -> tuple[ThreadStack, ...]:
    """Read one answer of a process: its threads, the main one first.

    The main thread is named by Python's identifier, and the kernel's id of it is the pid; those of
    the others are not told. None where the main one is not among them.
    """
    threads: dict[int, tuple[str, list[Frame]]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        begins, frame = THREAD.match(line), FRAME.match(line)
        if begins is not None:
            frames = []
            threads[int(begins["ident"], 16)] = (begins["name"] or "", frames)
        elif frame is not None:
            function, file = unescaped(frame["function"]), unescaped(frame["file"])
            frames.append(Frame(function, file, int(frame["line"])))
    if main_thread not in threads:
        return ()
    sources = Sources.of(pid)

    def stack(tid: int | None, ident: int, name: str, inner_first: Sequence[Frame]) -> ThreadStack:
        inner = inner_first[0] if inner_first else None
        return ThreadStack(
            tid=tid,
            ident=ident,
            name=name,
            takes_lock=inner is not None and sources.takes_lock(inner.file, inner.line),
            frames=tuple(reversed(inner_first)),
        )

    _, of_main = threads.pop(main_thread)
    others = (stack(None, one, name or f"0x{one:x}", f) for one, (name, f) in threads.items())
    return (stack(pid, main_thread, "MainThread", of_main), *others)


def unescaped(text: str) -> str:
    """Read text beyond ASCII, which faulthandler writes as escapes."""
    return ESCAPE.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)
