"""Is there room to record in: a run folder that answers, and shared memory?

Journals and verdicts go to the run folder; heartbeats go through shared memory, of which DataLoader
workers need far more than we do.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from pathlib import Path

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.places import nearest
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.atomic import NEW_FILE, PRIVATE_FILE, name_beside
from lightning_hangcheck.session.session import SHARED_MEMORY

RUN_FOLDER_WRITABLE = "run folder writable"
TIME_LIMIT_S = 1.0
# Journals of 8 ranks with a line a second are about 100 MB a day.
LEAST_FREE_BYTES = 200 * 2**20
SHARED_MEMORY_USABLE = "shared memory usable"
SESSION_BYTES = 4 * 2**20  # pages of 1000 ranks on one node
CONTAINER_DEFAULT_BYTES = 64 * 2**20  # docker run without --shm-size
LARGER = "start the container with docker run --shm-size=8g (or --ipc=host)"


def run_folder_writable(path: Path, time_limit_s: float = TIME_LIMIT_S) -> Check:
    """Write, flush to the disk and remove a small file; look at the free space.

    A folder that is not there yet is not made: the nearest one above it is tried.

    Args:
        path: The run folder.
        time_limit_s: Seconds; a network file system that is down does not answer at all.
    """
    folder = Path(os.path.abspath(path))  # noqa: PTH100 - resolving links would touch the disk
    elsewhere = "name a folder on another disk: --run-dir or HANGCHECK_RUN_DIR"
    try:
        free_bytes = apart(time_limit_s, lambda: _try_writing(folder))
    except NoAnswerFromStorage as error:
        return Check(
            RUN_FOLDER_WRITABLE, "failed", f"{folder} cannot be written: {error}", elsewhere
        )
    except OSError as error:
        return Check(
            RUN_FOLDER_WRITABLE,
            "failed",
            f"{folder} cannot be written ({error.strerror})",
            elsewhere,
        )
    if free_bytes < LEAST_FREE_BYTES:
        left = f"{free_bytes / 2**20:.0f} MB are left on the disk of {folder}"
        return Check(RUN_FOLDER_WRITABLE, "warning", left, f"free some space, or {elsewhere}")
    return Check(
        RUN_FOLDER_WRITABLE, "ok", f"{folder} can be written, {free_bytes / 2**30:.0f} GB free"
    )


def shared_memory_usable(folder: Path = SHARED_MEMORY) -> Check:
    """Map a page of shared memory as a rank does, and look at the room there.

    Args:
        folder: Where shared memory is mounted.
    """
    try:
        room = shutil.disk_usage(folder)
        if room.free < SESSION_BYTES:
            remedy = f"remove what ended jobs left there: ls -l {folder}"
            return Check(SHARED_MEMORY_USABLE, "failed", f"{folder} is full", remedy)
        _try_mapping(folder)
    except OSError as error:
        fallback = f"heartbeats go through files in {tempfile.gettempdir()}"
        sentence = f"{folder} cannot be used ({error.strerror}); {fallback}"
        return Check(SHARED_MEMORY_USABLE, "warning", sentence, LARGER)
    if room.total <= CONTAINER_DEFAULT_BYTES:
        sentence = f"{folder} has {room.total / 2**20:.0f} MB: DataLoader workers may die of SIGBUS"
        return Check(SHARED_MEMORY_USABLE, "warning", sentence, LARGER)
    return Check(
        SHARED_MEMORY_USABLE, "ok", f"{folder} can be used, {room.free / 2**30:.1f} GB free"
    )


def _try_writing(folder: Path) -> int:
    """Return the bytes that are free there.

    Raises:
        OSError: It cannot be written.
    """
    folder = nearest(folder)
    trial = name_beside(folder / "hangcheck-doctor")
    descriptor = os.open(trial, os.O_WRONLY | NEW_FILE, PRIVATE_FILE)
    try:
        os.write(descriptor, b"may this be written?\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        trial.unlink(missing_ok=True)
    return shutil.disk_usage(folder).free


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
