"""Memory that processes share through a file, all of it had before anything is written there.

A store into a mapped page that cannot be had any more is a SIGBUS, which no handler of Python's can
take: shared memory that a DataLoader's batches have filled would end the rank that notes a call.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

from lightning_hangcheck.files.atomic import PRIVATE_FILE, make_private_folder

if TYPE_CHECKING:
    from pathlib import Path


def reserve(descriptor: int, size: int) -> mmap.mmap:
    """Map an open file of zeros.

    Args:
        descriptor: Of it; may be closed afterwards.
        size: In bytes.

    Raises:
        OSError: There is no room for it.
    """
    os.posix_fallocate(descriptor, 0, size)
    return mmap.mmap(descriptor, size)


def reserve_file(path: Path, size: int) -> mmap.mmap:
    """Make a file that only this user may read, and its folder, and map it.

    Args:
        path: Of the file; without room for it there is an empty one.
        size: In bytes.

    Raises:
        OSError: Shared memory is full, or not ours.
    """
    make_private_folder(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        return reserve(descriptor, size)
    except OSError:
        os.ftruncate(descriptor, 0)
        raise
    finally:
        os.close(descriptor)
