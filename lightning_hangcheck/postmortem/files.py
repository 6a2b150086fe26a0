"""Walks files and folders, and opens each file within limits.

Others wrote these files: a pickle that would run code, a FIFO, a link that leads in a circle, a
gigabyte of zeros in a megabyte of gzip. Each is reported in a sentence, and affects no other file.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import resource
import stat
import zlib
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from _typeshed import WriteableBuffer

MOST_FILES = 20_000
DEEPEST = 24
HEAD_BYTES = 16 * 1024
"""First unpacked bytes of a file: enough to recognise its kind."""
UNPACKED_FLOOR = 64 * 1024 * 1024
MOST_PACKED = 200
"""Times that a packed file may grow: logs grow 10 to 50 times, a bomb a thousand times."""
MEMORY_FOR_READING = 1024 * 1024 * 1024
PACKERS: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ\x00": ("xz", lzma.open),
}
ARCHIVES = {
    b"PK\x03\x04": "a zip archive, as torch's checkpoints are: unpack it first if it holds logs",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first",
    b"\x7fELF": "a program",
}
SOURCES = frozenset(
    {".c", ".cc", ".cpp", ".cu", ".h", ".html", ".ipynb", ".js", ".md", ".pyi", ".py", ".rst"}
    | {".sh", ".toml", ".yaml", ".yml"}
)
"""Suffixes of source and text files: they may quote logs or have a rank in their name."""
_SAFELY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


Leave: TypeAlias = "Callable[[Path, str], None]"
"""Records a path that is not used, and why."""


class NotRead(Exception):
    """A file cannot be used; the message says why, in one clause."""


def walk(named: Sequence[str], run_folders: list[RunFolder], leave: Leave) -> Iterator[Path]:
    """Yield each regular file at or below the paths once; append run folders to a list.

    Links are followed only if they were named.

    Raises:
        UnreadableRun: A named path does not exist.
    """
    roots = [Path(name) for name in named]
    seen: set[tuple[int, int]] = set()
    pending = [(root, 0) for root in reversed(roots)]
    for root in roots:
        if not os.path.lexists(root):
            raise UnreadableRun(
                f"{root} is not there", "name files or folders: hangcheck postmortem PATH..."
            )
    while pending:
        path, depth = pending.pop()
        try:
            found = path.stat() if depth == 0 else path.lstat()
            key = found.st_dev, found.st_ino
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > MOST_FILES:
                leave(path, f"only the first {MOST_FILES:,} files and folders are looked at")
                return
            if stat.S_ISREG(found.st_mode):
                if depth and path.suffix in SOURCES:
                    leave(path, "source code or documentation; name the file to read it")
                else:
                    yield path
            elif not stat.S_ISDIR(found.st_mode):
                leave(path, "it is a link, device, pipe or socket")
            elif RunFolder(path).run_file.is_file() and RunFolder(path).evidence(1).parent.is_dir():
                run_folders.append(RunFolder(path.absolute()))
            elif depth >= DEEPEST:
                leave(path, f"only {DEEPEST} folders deep are looked at")
            else:
                below = sorted(islice(path.iterdir(), MOST_FILES), reverse=True)
                pending += [
                    (entry, depth + 1) for entry in below if not entry.name.startswith(".git")
                ]
        except OSError as error:
            leave(path, f"it cannot be read ({error.strerror or error})")


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, bytes]]:
    """Open a file, unpacked, and also return its first bytes, which remain to be read.

    Raises:
        NotRead: The file is empty, not regular, or an archive; while it is read, its packed data is
            broken or grows beyond the limit.
    """
    with io.BufferedReader(io.FileIO(os.open(path, _SAFELY)), HEAD_BYTES) as raw:
        found = os.fstat(raw.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise NotRead("it is not a regular file")
        start = raw.peek()
        packer = next((name for magic, name in PACKERS.items() if start.startswith(magic)), None)
        file: io.BufferedReader[Any] = raw
        head = start
        if packer is not None:
            most = max(UNPACKED_FLOOR, MOST_PACKED * found.st_size)
            file = io.BufferedReader(_Unpacked(packer[1](raw), packer[0], most), HEAD_BYTES)
            head = file.peek()
        if not head:
            raise NotRead("it is empty")
        if head[257:262] == b"ustar":
            raise NotRead("a tar archive: unpack it first")
        for magic, what in ARCHIVES.items():
            if head.startswith(magic):
                raise NotRead(what)
        yield file, head


class _Unpacked(io.RawIOBase):
    """The content of a packed file, up to a limit of bytes."""

    def __init__(self, file: BinaryIO, name: str, most: int) -> None:
        self._file, self._name, self._left = file, name, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._file.read(len(view))
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise NotRead(f"its {self._name} data is torn ({error})") from error
        self._left -= len(data)
        if self._left < 0:
            raise NotRead(f"its {self._name} data grows more than {MOST_PACKED} times: a bomb")
        view[: len(data)] = data
        return len(data)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Make the code inside fail with MemoryError before the machine runs out of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_FOR_READING
    limits = [most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
