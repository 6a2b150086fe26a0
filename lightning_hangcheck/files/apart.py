"""Work on storage that may never answer, done by a process that nobody waits for.

A thread that writes to a file system that stalls is in state D: no signal ends it, and a process
with such a thread cannot end either. So whoever must end on time lets another process touch it.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Fact = TypeVar("Fact")
CHUNK = 65_536
NAME = "hangcheck-apart"
"""Of such a process, as the kernel shows it: at most 15 bytes. Its command line is its parent's."""


LEFT_FOR_S = 600
"""Late work may still end. A fork of a process with threads may have a copy of a lock that nobody
gives back: it would stay for ever."""


class NoAnswerFromStorage(Exception):
    """The storage did not answer in time; the work goes on without us, or has failed silently."""


def apart(time_limit_s: float, work: Callable[[], Fact]) -> Fact:
    """Do work in a process of its own, about 2 ms; `NoAnswerFromStorage` where it takes longer.

    One that is late stays for ten minutes. What it imports should be imported already: another
    thread that imports the same just then has a lock, of which the fork would get a copy. What it
    returns or raises, pickle must carry.
    """
    import pickle  # before the fork; a rank never asks, and does not pay these 3 ms

    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # from Python 3.12 on: of several threads a fork copies one. Ours does this work, and ends
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _become_orphan(writer, work)
    os.close(writer)
    data, deadline = b"", time.monotonic() + time_limit_s
    with os.fdopen(reader, "rb", buffering=0) as answer:
        os.waitpid(child, 0)
        # until the other end is closed
        while select.select([answer], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = answer.read(CHUNK)
            if not part:
                break
            data += part
        else:
            data = b""
    if not data:
        raise NoAnswerFromStorage(f"no answer within {time_limit_s:g} s")
    outcome = pickle.loads(data)  # noqa: S301 - from our own fork, over a pipe that only it has
    if isinstance(outcome, Exception):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def is_apart(pid: int) -> bool:
    """Whether a process is one that does such work: none of a job's, wherever it was adopted."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n") == NAME
    except OSError:
        return False


def _become_orphan(writer: int, work: Callable[[], object]) -> None:
    """In the fork: leave the work to an orphan, which init collects whenever it comes to an end."""
    try:
        with suppress(OSError):  # before the fork: whoever meets the orphan knows it at once
            Path("/proc/self/comm").write_text(NAME)
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(LEFT_FOR_S)
            let_go_of_streams()  # and all else that others may wait to see closed
            os.closerange(3, writer)
            os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001 - raised again by the process that asked
                outcome = error
            import pickle

            os.write(writer, pickle.dumps(outcome))
    finally:
        os._exit(0)


def let_go_of_streams() -> None:
    """Put nothing in the place of the standard streams: others may read them to their end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    if nothing > 2:
        os.close(nothing)
