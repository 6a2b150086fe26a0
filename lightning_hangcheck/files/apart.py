"""Works on storage that may never answer, in a process for which nobody waits.

A thread that writes to a stalled file system is in state D: no signal ends the thread, and its
process cannot end either. So a process that must end on time lets another process touch it.
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
"""Name of such a process in the kernel, at most 15 bytes. Its command line is its parent's."""


LEFT_FOR_S = 600
"""Late work may still end. But a fork of a process with threads may have a copy of a lock that
nobody releases, and would stay for ever."""


class NoAnswerFromStorage(Exception):
    """The storage did not answer in time; the work continues without us, or failed silently."""


def apart(time_limit_s: float, work: Callable[[], Fact]) -> Fact:
    """Do work in its own process, which costs 2 ms; `NoAnswerFromStorage` after the time limit.

    A late process stays for ten minutes. Import what the work needs beforehand: if another thread
    is importing the same module, the fork gets a copy of its lock. Pickle must carry the result.
    """
    import pickle  # before the fork; here, as ranks never need it and save 3 ms

    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns that a fork copies one thread of several; this one works, and ends
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
    """Whether a process does such work; it belongs to no job, whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n") == NAME
    except OSError:
        return False


def _become_orphan(writer: int, work: Callable[[], object]) -> None:
    """In the fork: leave the work to an orphan, which init collects when it ends."""
    try:
        with suppress(OSError):  # before the fork: the orphan has its name from its start
            Path("/proc/self/comm").write_text(NAME)
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(LEFT_FOR_S)
            let_go_of_streams()  # and all else that others wait to see closed
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
    """Replace the standard streams by /dev/null: others may read them to their end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    if nothing > 2:
        os.close(nothing)
