"""Python stacks that a process writes itself, asked by a signal: where py-spy may not read it.

What the process does with that signal /proc tells everybody, without any permission; it is read
first, because a signal without a handler would end the process.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from msgspec.structs import replace

from lightning_hangcheck.files.owned_file import open_owned
from lightning_hangcheck.model.evidence import Gap, ProcessStack
from lightning_hangcheck.probes.proc.files import read_proc
from lightning_hangcheck.probes.proc.vitals import vitals
from lightning_hangcheck.probes.stacks.faulthandler_text import (
    MOST_THREADS,
    is_cut,
    read_stacks,
)
from lightning_hangcheck.session.stack_offers import StackOffer, find_offer
from lightning_hangcheck.time_limit import Looked, guarded


def handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal.

    Raises:
        OSError: As `read_proc`.
    """
    return _has(f"/proc/{pid}/status", b"SigCgt", number)


def is_pending(pid: int, number: int) -> bool:
    """Whether the signal was sent to the process and no thread has taken it yet.

    Raises:
        OSError: As `read_proc`.
    """
    return _has(f"/proc/{pid}/status", b"ShdPnd", number)


def blocking_threads(pid: int, number: int) -> frozenset[int]:
    """Return the threads that block the signal; while a handler runs, its thread does.

    About 30 microseconds a thread.

    Raises:
        OSError: The process is gone.
    """
    found = set()
    for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a hot path
        try:
            if _has(f"/proc/{pid}/task/{tid}/status", b"SigBlk", number):
                found.add(int(tid))
        except OSError:
            continue  # this thread ended since it was listed
    return frozenset(found)


def _has(path: str, field: bytes, number: int) -> bool:
    for line in read_proc(path).splitlines():
        name, _, mask = line.partition(b":")
        if name == field:
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


SOURCE = "faulthandler"
WITHOUT = "no class names, local variables or child processes"
LIMIT_S = 2.0
"""An answer takes 5 to 30 ms where the process runs at all."""
POLL_S = 0.004
LARGEST_ANSWER = 4 * 1024 * 1024  # 100 threads of 100 frames, 400 bytes each


class _NoStacks(Exception):
    """The process cannot be asked, or gave no answer; the message says why."""


def signalled_stacks(pid: int, rank: int | None, time_limit_s: float) -> Looked[ProcessStack]:
    """Have a process write its stacks, if it offers to.

    It is sent a signal only where it is the very process that offered and still has its handler.
    System calls that a signal interrupts for good (poll, select) come back early with EINTR, from
    which Python, gloo and NCCL go on.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        time_limit_s: Seconds until it is given up.

    Returns:
        The stacks; None without a gap where it offers none.
    """
    what = f"stack of pid {pid} by signal"
    offer = find_offer(pid)
    if offer is None:
        return None, ()

    def look() -> Looked[ProcessStack]:
        try:
            return _ask(offer, time.monotonic() + time_limit_s), ()
        except (_NoStacks, OSError) as error:
            return None, (Gap(what, rank, str(error), "stack"),)

    return guarded("stack", what, rank, look)


def or_by_signal(pid: int, rank: int | None, refused: tuple[Gap, ...]) -> Looked[ProcessStack]:
    """Take by signal what py-spy could not, and say so.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        refused: Why py-spy gave none.
    """
    stack, gaps = signalled_stacks(pid, rank, LIMIT_S)
    if stack is None:
        return None, refused + gaps
    instead = f"the rank wrote its stack itself instead, by faulthandler: {WITHOUT}"
    return stack, tuple(replace(gap, why=f"{gap.reason}; {instead}", remedy="") for gap in refused)


def _ask(offer: StackOffer, deadline: float) -> ProcessStack:
    process = os.pidfd_open(offer.pid)
    try:
        _refuse_if_in_vain(offer)
        before = blocking_threads(offer.pid, offer.signal)
        os.truncate(offer.answers, 0)
        signal.pidfd_send_signal(process, offer.signal)
    finally:
        os.close(process)
    _wait_for_the_end(offer, before, deadline)
    with os.fdopen(open_owned(Path(offer.answers)), "rb") as file:
        text = file.read(LARGEST_ANSWER).decode("ascii", errors="replace")
    threads = read_stacks(text, offer.pid, offer.main_thread)
    if not threads and is_cut(text):
        raise _NoStacks(
            f"it has more than {MOST_THREADS} threads, and faulthandler writes only the newest "
            f"{MOST_THREADS}: its main thread is not among them"
        )
    if not threads:
        raise _NoStacks("its main thread is not among those that it wrote")
    return ProcessStack(pid=offer.pid, source=SOURCE, threads=threads)


def _refuse_if_in_vain(offer: StackOffer) -> None:
    """A signal without a handler would end the process; an exec takes handlers away."""
    seen = vitals(offer.pid)
    if seen is None or seen.started_ticks != offer.started_ticks or seen.state in "ZX":
        raise _NoStacks("the process has ended")
    if seen.state in "Tt":
        raise _NoStacks("it is stopped, so it answers no signal")
    if not handles(offer.pid, offer.signal):
        raise _NoStacks(f"it no longer handles signal {offer.signal}")
    if is_pending(offer.pid, offer.signal):
        raise _NoStacks("it has not answered an earlier request yet")


def _wait_for_the_end(offer: StackOffer, before: frozenset[int], deadline: float) -> None:
    """Whoever takes the signal blocks it until all is written; only then the answer is whole."""
    answers = Path(offer.answers)
    while (
        is_pending(offer.pid, offer.signal)
        or answers.stat().st_size == 0
        or blocking_threads(offer.pid, offer.signal) - before
    ):
        if time.monotonic() > deadline:
            raise _NoStacks(f"it did not answer signal {offer.signal} in time")
        time.sleep(POLL_S)
