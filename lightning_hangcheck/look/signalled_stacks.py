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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.files.safe import open_owned
from lightning_hangcheck.look.proc import ENDED, thread_ids, vitals
from lightning_hangcheck.machine import read_status
from lightning_hangcheck.model.evidence import Frame, ProcessStack, ThreadStack
from lightning_hangcheck.session.session import StackOffer, find_offer
from lightning_hangcheck.time_limit import Looked, Unseen, guarded

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import Gap

WITHOUT = "no class names, local variables or child processes"
LIMIT_S = 2.0  # An answer takes 5 to 30 ms where the process runs at all
POLL_S = 0.004
LARGEST_ANSWER = 4 * 1024 * 1024  # 100 threads of 100 frames, 400 bytes each
MOST_THREADS = 100  # MAX_NTHREADS of Python/traceback.c, in all versions so far


def signalled_stacks(
    pid: int, rank: int | None, time_limit_s: float, refused: tuple[Gap, ...] = ()
) -> Looked[ProcessStack]:
    """Have a process write its stacks, if it offers to, where py-spy was refused them.

    It is sent a signal only where it is the very process that offered and still has its handler.
    System calls that a signal interrupts for good (poll, select) come back early with EINTR, from
    which Python, gloo and NCCL go on.
    """
    offer = find_offer(pid)
    if offer is None:
        return None, refused

    def look() -> ProcessStack:
        try:
            return _ask(offer, time.monotonic() + min(LIMIT_S, time_limit_s))
        except OSError as error:
            raise Unseen(str(error)) from error

    stack, gaps = guarded("stack", f"stack of pid {pid} by signal", rank, look)
    if stack is None:
        return None, refused + gaps
    instead = f"the rank wrote its stack itself instead, by faulthandler: {WITHOUT}"
    return stack, tuple(replace(gap, why=f"{gap.reason}; {instead}", remedy="") for gap in refused)


def _ask(offer: StackOffer, deadline: float) -> ProcessStack:
    pid = offer.pid

    def has(field: str, tid: int | None = None) -> bool:
        """Whether a set of signals in a status file has this one."""
        return bool(int(read_status(pid, tid).get(field, "0"), 16) >> (offer.signal - 1) & 1)

    def blocking() -> set[int]:
        """The threads that block it; while a handler runs, its thread does."""
        found = set()
        for tid in thread_ids(pid):
            with suppress(OSError):  # this thread ended since it was listed
                found |= {tid} if has("SigBlk", tid) else set()
        return found

    process = os.pidfd_open(pid)
    try:
        # a signal without a handler would end the process; an exec takes handlers away
        seen = vitals(pid)
        if seen is None or seen.started_ticks != offer.started_ticks or seen.has_ended:
            raise Unseen(ENDED)
        if seen.state in "Tt":
            raise Unseen("it is stopped, so it answers no signal")
        if not has("SigCgt"):
            raise Unseen(f"it no longer handles signal {offer.signal}")
        if has("ShdPnd"):
            raise Unseen("it has not answered an earlier request yet")
        before = blocking()
        os.truncate(offer.answers, 0)
        signal.pidfd_send_signal(process, offer.signal)
    finally:
        os.close(process)
    # whoever takes the signal blocks it until all is written; only then the answer is whole
    answers = Path(offer.answers)
    while has("ShdPnd") or answers.stat().st_size == 0 or blocking() - before:
        if time.monotonic() > deadline:
            raise Unseen(f"it did not answer signal {offer.signal} in time")
        time.sleep(POLL_S)
    with os.fdopen(open_owned(answers), "rb") as file:
        text = file.read(LARGEST_ANSWER).decode("ascii", errors="replace")
    threads = read_stacks(text, pid, offer.main_thread)
    if threads:
        return ProcessStack(pid=pid, source="faulthandler", threads=threads)
    if "..." in text.splitlines():
        raise Unseen(
            f"it has more than {MOST_THREADS} threads, and faulthandler writes only the newest "
            f"{MOST_THREADS}: its main thread is not among them"
        )
    raise Unseen("its main thread is not among those that it wrote")


# What faulthandler writes. Pure

THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)"
    r"(?: \[(?P<name>.*)\])? \(most recent call first\):$"
)
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


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
    stacks = [
        ThreadStack(
            tid=pid if ident == main_thread else None,
            ident=ident,
            name="MainThread" if ident == main_thread else name or f"0x{ident:x}",
            frames=tuple(reversed(inner_first)),
        )
        for ident, (name, inner_first) in threads.items()
    ]
    return tuple(sorted(stacks, key=lambda stack: stack.ident != main_thread))


def unescaped(text: str) -> str:
    """Read text beyond ASCII, which faulthandler writes as escapes."""
    return ESCAPE.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), text)
