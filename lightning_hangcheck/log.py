"""Writes messages to standard error; no process of ours waits for a reader.

A pipe whose reader pauses, or a terminal stopped with Ctrl-S, blocks its writers. So a rank drops
what standard error does not take at once. `hangcheck run` and the sidecar write in a thread of
their own, which may wait.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without slow enumerations
import os
import select
import threading
from contextlib import suppress

from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import one_line

STDERR = 2
LAST_WORDS_S = 1.0
"""Seconds that a process of ours waits at its end for a reader of its messages."""
MOST_WAITING = 100
"""Texts that are kept while nobody reads: lines, and reports of some 5 KB each."""

_said: set[str] = set()
_lock = threading.Lock()
_writer: _Writer | None = None


def _forget_in_child() -> None:
    """Another thread may have held the lock at the fork, and the child has no writer thread."""
    global _lock, _writer
    _lock, _writer = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_in_child)


def once(key: str, sentence: str) -> None:
    """Report what happened and what to do, once per process for each trouble ``key``."""
    # A line is one write(2), so lines of several processes never mix; secrets are hidden. A line
    # that standard error did not take may be reported again.
    with _lock:
        if key in _said:
            return
        _said.add(key)
    if not say(f"[hangcheck][PID:{os.getpid()}] {one_line(redact_text(sentence))}"):
        _said.discard(key)


def say(text: str) -> bool:
    """Write a text in one write, or queue it; return whether either succeeded."""
    data = f"{text.rstrip()}\n".encode(errors="replace")
    return write_at_once(data) if _writer is None else _writer.add(data)


def write_at_once(data: bytes) -> bool:
    """Write to standard error unless that would take time; return whether it was written."""
    # A pipe or a terminal is opened anew, because O_NONBLOCK on the descriptor of standard error
    # would hold for all processes that share it. A file has no reader, and its position is shared.
    try:
        with_position = os.lseek(STDERR, 0, os.SEEK_CUR) >= 0  # half the time of fstat
    except OSError:  # a pipe, a terminal or a socket
        with_position = False
    try:
        if with_position:
            return os.write(STDERR, data) > 0
        with suppress(OSError):  # a socket, or another user's terminal: poll before instead
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
    except OSError:  # closed or full: there is nowhere left to report it
        return False


def start_writer() -> None:
    """Start a thread that writes all messages of this process from now on; not for ranks."""
    # It takes none of the signals that this process waits for.
    global _writer
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _writer = _writer or _Writer()
    except RuntimeError:  # the machine gives no further thread
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def finish(time_limit_s: float) -> None:
    """Wait until all messages are written, at most ``time_limit_s`` seconds."""
    if _writer is not None:
        _writer.finish(time_limit_s)


class _Writer:
    """A daemon thread: its wait for a reader does not keep this process from ending."""

    def __init__(self) -> None:
        from queue import SimpleQueue

        self._texts: SimpleQueue[bytes] = SimpleQueue()
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
    """Write everything, however long it takes; others may have made stderr non-blocking."""
    while data:
        try:
            data = data[os.write(STDERR, data) :]
        except BlockingIOError:
            select.select([], [STDERR], [])
        except OSError:
            return
