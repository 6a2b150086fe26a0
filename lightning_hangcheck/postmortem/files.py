"""Walks files and folders, knows each file by its content, and has it read within bounds.

Whatever lies there was written by others: a pickle that would run code, a FIFO, a link that leads
in a circle, a gigabyte of zeros in a megabyte of gzip. Each ends in a sentence, and costs no other
file anything. A kind of file is a row of a table: how its first bytes look, and its reader.
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
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.model.left_behind import LeftOut
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from _typeshed import WriteableBuffer

MOST_FILES = 20_000
DEEPEST = 24
MOST_LEFT_OUT = 200
HEAD_BYTES = 16 * 1024
"""Of a file, unpacked: enough to tell what it is."""
UNPACKED_FLOOR = 64 * 1024 * 1024
MOST_PACKED = 200
"""Times a packed file may grow: logs grow 10 to 50 times, a bomb a thousand."""
MEMORY_FOR_READING = 1024 * 1024 * 1024
PACKERS: dict[bytes, tuple[str, Callable[[Any], Any]]] = {
    b"\x1f\x8b": ("gzip", gzip.open),
    b"BZh": ("bzip2", bz2.open),
    b"\xfd7zXZ\x00": ("xz", lzma.open),
}
ARCHIVES = {
    b"PK\x03\x04": "a zip archive, as torch's checkpoints are",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first",
    b"\x7fELF": "a program",
}
SOURCES = frozenset(
    {".c", ".cc", ".cpp", ".cu", ".h", ".html", ".ipynb", ".js", ".md", ".pyi", ".py", ".rst"}
    | {".sh", ".toml", ".yaml", ".yml"}
)
"""Ends of names of what lies beside logs and may quote them, or have a rank in its name."""
_SAFELY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class NotRead(Exception):
    """A file that cannot be used; its message says why, in one clause."""


class Reader(NamedTuple):
    """A kind of file.

    Attributes:
        recognise: Whether the first bytes of a file, unpacked, are of this kind.
        read: Reads a file, unpacked and bounded; raises `NotRead` where it is none after all.
    """

    recognise: Callable[[bytes], bool]
    read: Callable[[Path, BinaryIO], object]


class Reading(NamedTuple):
    """A file that was read, and what its reader made of it.

    Attributes:
        modified_ns: When it was written last, nanoseconds since 1970; 0 where nobody knows.
    """

    path: Path
    found: object
    modified_ns: int = 0


class Left(NamedTuple):
    """What lies below the named paths: files that were read, run folders, and all else."""

    readings: list[Reading]
    run_folders: list[RunFolder]
    left_out: list[LeftOut]


def read_left(named: Sequence[str], readers: Sequence[Reader]) -> Left:
    """Read what lies at paths and below them; the first reader that knows a file reads it.

    Raises:
        UnreadableRun: A named path is not there.
    """
    left = Left([], [], [])
    for path in _walk([Path(name) for name in named], left):
        try:
            reading = _read(path, readers)
        except NotRead as error:
            _leave(left, path, str(error))
        except OSError as error:
            _leave(left, path, f"it cannot be read ({error.strerror or error})")
        except MemoryError:
            _leave(left, path, "it would take too much memory")
        else:
            left.readings.append(reading)
    return left


def _walk(roots: Sequence[Path], left: Left) -> Iterator[Path]:
    """Yield regular files, each once; links are followed only where they were named."""
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
                _leave(left, path, f"only the first {MOST_FILES:,} files and folders are looked at")
                return
            if stat.S_ISREG(found.st_mode):
                if depth and path.suffix in SOURCES:
                    _leave(left, path, "source code or documentation; name the file to read it")
                else:
                    yield path
            elif not stat.S_ISDIR(found.st_mode):
                _leave(left, path, "it is a link, device, pipe or socket")
            elif _is_run_folder(path):
                left.run_folders.append(RunFolder(path.absolute()))
            elif depth >= DEEPEST:
                _leave(left, path, f"only {DEEPEST} folders deep are looked at")
            else:
                below = sorted(islice(path.iterdir(), MOST_FILES), reverse=True)
                pending += [(one, depth + 1) for one in below if not one.name.startswith(".git")]
        except OSError as error:
            _leave(left, path, f"it cannot be read ({error.strerror or error})")


def _is_run_folder(path: Path) -> bool:
    folder = RunFolder(path)
    return folder.run_file.is_file() and folder.evidence(1).parent.is_dir()


def _leave(left: Left, path: Path, why: str) -> None:
    if len(left.left_out) < MOST_LEFT_OUT:
        left.left_out.append(LeftOut(str(path), why))


def _read(path: Path, readers: Sequence[Reader]) -> Reading:
    with _opened(path) as (file, head):
        if not head:
            raise NotRead("it is empty")
        for magic, what in ARCHIVES.items():
            if head.startswith(magic):
                raise NotRead(what)
        reader = next((one for one in readers if one.recognise(head)), None)
        if reader is None:
            raise NotRead("its content is of no kind that is known")
        return Reading(path, reader.read(path, file), path.stat().st_mtime_ns)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, bytes]]:
    """Open a file, unpacked, and return its first bytes too, which are still to be read."""
    with io.BufferedReader(io.FileIO(os.open(path, _SAFELY)), HEAD_BYTES) as raw:
        found = os.fstat(raw.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise NotRead("it is not a regular file")
        start = raw.peek()
        packer = next((one for magic, one in PACKERS.items() if start.startswith(magic)), None)
        if packer is None:
            yield raw, start
            return
        name, unpack = packer
        unpacked = _Unpacked(unpack(raw), name, max(UNPACKED_FLOOR, MOST_PACKED * found.st_size))
        file = io.BufferedReader(unpacked, HEAD_BYTES)
        yield file, file.peek()


class _Unpacked(io.RawIOBase):
    """What comes out of a packed file, up to a most."""

    def __init__(self, file: BinaryIO, name: str, most: int) -> None:
        self._file, self._name, self._left = file, name, most

    def readable(self) -> bool:
        """Tell `io.BufferedReader` that it is."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Unpack the next bytes."""
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
    """Let what is done meanwhile fail with a MemoryError, before the machine runs out of memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_FOR_READING
    limits = [most, *(one for one in (soft, hard) if one != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
