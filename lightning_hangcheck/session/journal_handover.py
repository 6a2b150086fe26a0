"""How journals come to the run folder: ranks leave lines in shared memory, one process takes them.

    <session>/journals/<clock>.<pid>.<journal>   some whole lines of one journal

Only the carrier touches the disk. It is the sidecar where there is one; so storage that stalls
never holds a rank. A batch is taken away before it is written: it is never in a journal twice.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from lightning_hangcheck.files.atomic import open_for_append, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lightning_hangcheck.rundir.layout import RunFolder

MOST_LEFT_BYTES = 512 * 2**10
"""What one rank may have waiting, about 4,000 lines: /dev/shm is 64 MB in a container by default,
and DataLoaders need it."""


class Handover:
    """A rank's end: leaves lines of its journal.

    Args:
        folder: The session's ``journals``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[Path, int] = {}

    def waiting_bytes(self) -> int:
        """Look how much of what was left has not been taken yet."""
        self._waiting = {path: size for path, size in self._waiting.items() if path.exists()}
        return sum(self._waiting.values())

    def leave(self, journal: str, lines: bytes) -> None:
        """Leave whole lines for a journal.

        Raises:
            OSError: Shared memory is full, or the session is gone.
        """
        batch = self._folder / f"{time.monotonic_ns():020d}.{os.getpid()}.{journal}"
        write_atomically(batch, lines)
        self._waiting[batch] = len(lines)


class Carrier:
    """The other end: appends what was left to the journals in the run folder.

    Args:
        left: The session's ``journals``.
        prepare: Makes the run folder and returns it; called when there is something to carry.
        seen: Told all lines on their way, before they are written.
    """

    def __init__(
        self,
        left: Path,
        prepare: Callable[[], RunFolder],
        seen: Callable[[bytes], object] = bool,
    ) -> None:
        self._left = left
        self._prepare = prepare
        self._seen = seen
        self._descriptors: dict[str, int] = {}

    def carry(self, only_pid: int | None = None) -> None:
        """Carry all that was left, in that order; blocks for as long as the disk does.

        Args:
            only_pid: Only what this process left.

        Raises:
            UnpreparedRunFolder: The run folder cannot be made.
            OSError: A journal cannot be written; those lines are lost.
        """
        for journal, lines in self._taken(only_pid):
            self._seen(lines)
            descriptor = self._descriptors.get(journal)
            if descriptor is None:
                descriptor = self._descriptors[journal] = self._open(journal)
            if os.write(descriptor, lines) < len(lines):
                raise OSError("the disk is full: it took only a part")

    def _taken(self, only_pid: int | None) -> Iterator[tuple[str, bytes]]:
        names = (name for name in _names(self._left) if not name.startswith("."))
        for name in sorted(names):
            _, pid, journal = name.split(".", 2)
            if only_pid is None or pid == str(only_pid):
                batch = self._left / name
                try:
                    lines = batch.read_bytes()
                    batch.unlink()
                except FileNotFoundError:  # another carrier was quicker
                    continue
                yield journal, lines

    def _open(self, journal: str) -> int:
        """Open a journal; if its last line was torn, end it, so that ours begins on its own."""
        descriptor = open_for_append(self._prepare().journals / journal)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")
        return descriptor


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone, twice a second
    except OSError:
        return []
