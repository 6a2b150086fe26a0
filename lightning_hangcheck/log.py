"""Troubles of our own: said once each, on stderr, never in the way of training."""

from __future__ import annotations

import os
import threading

from lightning_hangcheck.text.plain_text import one_line
from lightning_hangcheck.text.redaction import redact_text

_said: set[str] = set()
_lock = threading.Lock()


def _unlock_in_child() -> None:
    """Another thread may have held the lock at the fork; in the child nobody would free it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


def once(key: str, sentence: str) -> None:
    """Print a sentence to stderr the first time that this process meets the trouble.

    One write(2) a line, so lines of several processes never mix. A closed or full stderr is
    ignored: there is nowhere left to say it.

    Args:
        key: Names the trouble; later sentences under the same key are dropped.
        sentence: What happened and what to do; secrets in it are hidden, and it becomes one line.
    """
    with _lock:
        if key in _said:
            return
        _said.add(key)
    line = f"[hangcheck][PID:{os.getpid()}] {one_line(redact_text(sentence))}\n"
    try:
        os.write(2, line.encode())
    except OSError:
        return
