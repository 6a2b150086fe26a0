"""Which libraries a process has loaded, as its memory's map shows."""

from __future__ import annotations

from functools import partial

from lightning_hangcheck.probes.proc.files import read_table
from lightning_hangcheck.time_limit import NoAnswer, within

READ_LIMIT_S = 0.2
"""The kernel takes the process's mmap lock for it, so it may block."""


def has_loaded(pid: int, library: str) -> bool:
    """Whether a library is mapped in a process; about 2 ms for one that has loaded torch.

    Args:
        pid: The process.
        library: How the name of the library's file begins, as in ``libtorch``.

    Returns:
        False, too, where that cannot be read, or not in 0.2 s.
    """
    try:
        rows = within(READ_LIMIT_S, partial(read_table, f"/proc/{pid}/maps"))
    except (NoAnswer, OSError):
        return False
    return any(row[-1].rpartition("/")[2].startswith(library) for row in rows if len(row) > 5)
