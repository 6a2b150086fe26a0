"""Is this process a rank, or only the helper of one that inherited its environment?

A DataLoader worker, a compile worker or a script started by a rank carries the rank's RANK and
HANGCHECK_SESSION. If it recorded too, two processes would claim the same rank.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page_reader import PageReader
from lightning_hangcheck.rundir.process_stat import read_process_stat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.identity import Identity

MOST_ANCESTORS = 64


def is_multiprocessing_child() -> bool:
    """Whether the multiprocessing module started this process, by fork, spawn or forkserver."""
    # such a child has imported it already; importing it here would cost every other process 10 ms
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def is_helper(pages: Path, identity: Identity) -> bool:
    """Whether an ancestor records, and this process has no rank of its own beside it.

    Ranks that Lightning starts from the first one have a LOCAL_RANK that differs from its own.

    Args:
        pages: The session's folder of pages.
        identity: Of this process, by its environment.
    """
    for pid in _ancestors():
        reader = PageReader(pages / f"{pid}.page")
        page = reader.read()
        reader.close()
        if isinstance(page, Beat):
            claimed = (identity.rank, identity.local_rank)
            return claimed in ((None, None), (page.rank, page.local_rank))
    return False


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    for _ in range(MOST_ANCESTORS):
        if pid <= 1:
            return
        yield pid
        stat = read_process_stat(pid)
        pid = stat.parent_pid if stat else 0
