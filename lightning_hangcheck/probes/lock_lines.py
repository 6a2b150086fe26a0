"""Does a line of a program take a lock? A lock's own frame is C and shows in no Python stack."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from lightning_hangcheck.probes.guard import NoAnswer, within
from lightning_hangcheck.rundir.owned_file import read_regular

TAKES_LOCK = re.compile(rb"^\s*with\s[^()]*:\s*(#.*)?$|\.acquire\(")
TIME_LIMIT_S = 0.2
LARGEST_FILE = 4 * 1024 * 1024  # generated code; it would cost more than it tells


@lru_cache(maxsize=4096)
def takes_lock(file: str, line: int) -> bool:
    """Whether the line is a ``with`` statement that calls nothing, or calls ``acquire``.

    A thread whose innermost Python frame stands there, and which the kernel shows in a futex
    without a time limit, waits for a lock: whatever else such a line may call has a frame.

    Args:
        file: Path as the interpreter knows it; read once, at most 4 MiB, in at most 0.2 s.
        line: Counted from 1.

    Returns:
        False too where the file cannot be read.
    """
    if not file.startswith(os.sep):
        return False
    lines = _lines(file)
    return 0 < line <= len(lines) and TAKES_LOCK.search(lines[line - 1]) is not None


@lru_cache(maxsize=8)
def _lines(file: str) -> tuple[bytes, ...]:
    try:
        return within(TIME_LIMIT_S, lambda: _read(Path(file)))
    except (NoAnswer, OSError):
        return ()


def _read(path: Path) -> tuple[bytes, ...]:
    return tuple(read_regular(path, LARGEST_FILE).splitlines())
