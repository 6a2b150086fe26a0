"""What we say on standard error. Nothing of ours waits until somebody reads it.

A pipe whose reader pauses, or a terminal stopped with Ctrl-S, blocks whoever writes to it. So a
rank leaves out what standard error does not take at once. `hangcheck run` and the sidecar write
from a thread of their own, which may wait.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import stat
import threading
from contextlib import suppress

from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import one_line

STDERR = 2
LAST_WORDS_S = 1.0
"""Time at the end of a process of ours for what it has said, where nobody reads it."""
MOST_WAITING = 100
"""Texts kept while nobody reads: lines, and reports of some 5 KB each."""

_said: set[str] = set()
_lock = threading.Lock()
_writer: _Writer | None = None


def _forget_in_child() -> None:
    """Another thread may have held the lock at the fork, and the writer is not in the child."""
    global _lock, _writer
    _lock, _writer = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_in_child)


def once(key: str, sentence: str) -> None:
    """Say what happened and what to do, the first time that this process meets the trouble ``key``.

    One write(2) a line, so lines of several processes never mix; secrets are hidden. Where standard
    error does not take it, it may be said again.
    """
    with _lock:
        if key in _said:
            return
        _said.add(key)
    if not say(f"[hangcheck][PID:{os.getpid()}] {one_line(redact_text(sentence))}"):
        _said.discard(key)


def say(text: str) -> bool:
    """Say a text in one write; whether it was written, or is kept until it can be."""
    data = f"{text.rstrip()}\n".encode(errors="replace")
    return write_at_once(data) if _writer is None else _writer.add(data)


def write_at_once(data: bytes) -> bool:
    """Write to standard error unless that would take time; whether it was written.

    A pipe or a terminal is opened anew, because O_NONBLOCK on the descriptor of standard error
    would hold for all processes that share it. A file has no reader, and its place is shared.
    """
    try:
        if stat.S_ISREG(os.fstat(STDERR).st_mode):
            return os.write(STDERR, data) > 0
        with suppress(OSError):  # a socket, or the terminal of another user: asked before instead
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            descriptor = os.open(f"/proc/self/fd/{STDERR}", flags)
            try:
                return os.write(descriptor, data) > 0
            except BlockingIOError:
                return False
            finally:
                os.close(descriptor)
        ready = select.poll()  # one per call: two threads must not use the same one
        ready.register(STDERR, select.POLLOUT)
        return bool(ready.poll(0)) and os.write(STDERR, data) > 0
    except OSError:  # closed or full: there is nowhere left to say it
        return False


def start_writer() -> None:
    """Have a thread write what this process says from now on; for processes of our own.

    It takes none of the signals that this process waits for.
    """
    global _writer
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _writer = _writer or _Writer()
    except RuntimeError:  # the machine gives no further thread
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def finish(time_limit_s: float) -> None:
    """Wait until all that was said is written, at most so many seconds."""
    if _writer is not None:
        _writer.finish(time_limit_s)


class _Writer:
    """A daemon thread: one that waits for a reader does not keep this process from ending."""

    def __init__(self) -> None:
        self._texts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._left_out = 0
        self._unwritten = 0
        self._count = threading.Condition()
        threading.Thread(target=self._run, name="hangcheck-stderr", daemon=True).start()

    def add(self, data: bytes) -> bool:
        with self._count:
            if self._unwritten >= MOST_WAITING:
                self._left_out += 1
                return False
            self._unwritten += 1
        self._texts.put(data)
        return True

    def finish(self, time_limit_s: float) -> None:
        with self._count:
            self._count.wait_for(lambda: not self._unwritten, time_limit_s)

    def _run(self) -> None:
        while True:
            _write_all(self._texts.get())
            with self._count:
                self._unwritten -= 1
                left_out, self._left_out = self._left_out, 0
                self._count.notify_all()
            if left_out:
                _write_all(f"[hangcheck] {left_out} texts were left out: nobody read\n".encode())


def _write_all(data: bytes) -> None:
    """Wait as long as it takes; somebody else may have made standard error non-blocking."""
    while data:
        try:
            data = data[os.write(STDERR, data) :]
        except BlockingIOError:
            select.select([], [STDERR], [])
        except OSError:
            return
