"""A file system of a test's own that stops answering when told to, as dead storage does."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND_LIMIT_S = 20
SIZE = "32M"


class StallingStorage:
    """An ext4 image, mounted by a loop device; frozen, it keeps every writer in the kernel.

    A thread that writes to a frozen file system is in state D: no signal ends it, SIGKILL neither,
    before the file system thaws.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def stall(self) -> None:
        """Answer no writer from now on."""
        _do("fsfreeze", "--freeze", str(self.folder))

    def answer_again(self) -> None:
        """Answer again, those who wait first; an error says that it was not stalled."""
        _do("fsfreeze", "--unfreeze", str(self.folder))


@contextmanager
def stalling_storage(below: Path) -> Iterator[StallingStorage]:
    """Mount one for a test, and thaw and unmount it whatever happens; skip where not permitted."""
    image, folder = below / "storage.img", below / "storage"
    folder.mkdir()
    try:
        _do("truncate", "--size", SIZE, str(image))
        _do("mkfs.ext4", "-q", str(image))
        _do("mount", "-o", "loop", str(image), str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root, a loop device, mkfs.ext4 and fsfreeze ({error})")
    storage = StallingStorage(folder)
    try:
        yield storage
    finally:
        _try("fsfreeze", "--unfreeze", str(folder))
        _try("umount", "--lazy", str(folder))


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_LIMIT_S)


def _try(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True, timeout=COMMAND_LIMIT_S)
