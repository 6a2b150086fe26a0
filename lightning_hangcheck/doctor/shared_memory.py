"""Is there shared memory for the heartbeats, and enough of it for DataLoader workers?"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.rundir.atomic import NEW_FILE, PRIVATE_FILE, name_beside
from lightning_hangcheck.rundir.session import SHARED_MEMORY

if TYPE_CHECKING:
    from pathlib import Path

NAME = "shared memory usable"
SESSION_BYTES = 4 * 2**20  # pages of 1000 ranks on one node
CONTAINER_DEFAULT_BYTES = 64 * 2**20  # docker run without --shm-size
LARGER = "start the container with docker run --shm-size=8g (or --ipc=host)"


def shared_memory_usable(folder: Path = SHARED_MEMORY) -> Check:
    """Map a page of shared memory as a rank does, and look at the room there.

    Args:
        folder: Where shared memory is mounted.
    """
    try:
        room = shutil.disk_usage(folder)
        if room.free < SESSION_BYTES:
            remedy = f"remove what ended jobs left there: ls -l {folder}"
            return Check(NAME, "failed", f"{folder} is full", remedy)
        _try_mapping(folder)
    except OSError as error:
        fallback = f"heartbeats go through files in {tempfile.gettempdir()}"
        sentence = f"{folder} cannot be used ({error.strerror}); {fallback}"
        return Check(NAME, "warning", sentence, LARGER)
    if room.total <= CONTAINER_DEFAULT_BYTES:
        sentence = f"{folder} has {room.total / 2**20:.0f} MB: DataLoader workers may die of SIGBUS"
        return Check(NAME, "warning", sentence, LARGER)
    return Check(NAME, "ok", f"{folder} can be used, {room.free / 2**30:.1f} GB free")


def _try_mapping(folder: Path) -> None:
    trial = name_beside(folder / "hangcheck-doctor")
    descriptor = os.open(trial, os.O_RDWR | NEW_FILE, PRIVATE_FILE)
    try:
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as page:
            page[0] = 1
    finally:
        os.close(descriptor)
        trial.unlink(missing_ok=True)
