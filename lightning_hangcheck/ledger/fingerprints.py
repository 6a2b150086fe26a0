"""Are a phase's files as they were? Told by their content, as far as reading it is affordable."""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator

WHOLE_BYTES = 64 * 1024 * 1024
"""Up to here the whole file is read: 0.1 s at the 0.5 GB/s of a network disk."""
END_BYTES = 1024 * 1024
"""Of a larger file its first and last MiB: where formats keep their headers and indices."""
MOST_FILES = 10_000
"""Of a folder: about a second of looking on a network disk."""


class Fingerprint(Struct, frozen=True, kw_only=True):
    """A file or folder at one moment.

    Attributes:
        path: Absolute, or the address of something remote.
        size: Bytes; of a folder the sum.
        modified_ns: When it was changed last; of a folder the latest of its files.
        digest: Empty where it could not be taken.
        how: What the digest rests on, in words, or why there is none.
    """

    path: str
    size: int = 0
    modified_ns: int = 0
    digest: str = ""
    how: str


def fingerprint(path: str) -> Fingerprint:
    """Take the fingerprint of a file or folder. Reads the disk; never raises."""
    if "://" in path:
        return Fingerprint(path=path, how="not looked at: it is remote")
    place = Path(path)
    try:
        place = place.absolute()
        found = place.stat()
        if stat.S_ISDIR(found.st_mode):
            return _of_folder(place)
        if not stat.S_ISREG(found.st_mode):
            return Fingerprint(path=str(place), how="not looked at: it is no file and no folder")
        return _of_file(place, found)
    except FileNotFoundError:
        return Fingerprint(path=str(place), how="it is not there")
    except OSError as error:
        return Fingerprint(path=str(place), how=f"not read: {error.strerror}")
    except ValueError as error:  # no system can have a file of this name
        return Fingerprint(path=str(place), how=f"not read: {error}")


def difference(before: Fingerprint, now: Fingerprint) -> str:
    """Say in words how a file differs from what it was; empty where it does not."""
    name = before.path
    if not before.digest or not now.digest:
        return f"{name} cannot be compared ({now.how if not now.digest else before.how})"
    if before.digest == now.digest:
        return ""
    if before.size != now.size:
        return f"{name} has changed: {before.size:,} bytes then, {now.size:,} now"
    return f"{name} has changed (told by {now.how})"


def _of_file(path: Path, found: os.stat_result) -> Fingerprint:
    whole = found.st_size <= WHOLE_BYTES
    digest = _sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if whole:
            digest.update(file.read(WHOLE_BYTES))
        else:
            digest.update(f"{found.st_size} {found.st_mtime_ns}".encode())
            digest.update(file.read(END_BYTES))
            file.seek(found.st_size - END_BYTES)
            digest.update(file.read(END_BYTES))
    return Fingerprint(
        path=str(path),
        size=found.st_size,
        modified_ns=found.st_mtime_ns,
        digest=digest.hexdigest(),
        how="its whole content" if whole else "size, time, first and last MiB",
    )


def _of_folder(folder: Path) -> Fingerprint:
    files = sorted(islice(_files_of(folder), MOST_FILES + 1))
    digest = _sha256()
    for name, size, modified_ns in files[:MOST_FILES]:
        digest.update(f"{name}\0{size}\0{modified_ns}\0".encode(errors="surrogateescape"))
    several = f"{MOST_FILES:,} of its files" if len(files) > MOST_FILES else f"{len(files):,} files"
    return Fingerprint(
        path=str(folder),
        size=sum(size for _, size, _ in files),
        modified_ns=max((modified_ns for _, _, modified_ns in files), default=0),
        digest=digest.hexdigest(),
        how=f"names, sizes and times of {several}",
    )


def _sha256() -> hashlib._Hash:
    # it brings OpenSSL, which the watcher and a phase without files need not load
    import hashlib

    return hashlib.sha256()


def _files_of(folder: Path) -> Iterator[tuple[str, int, int]]:
    for inside, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(inside, name)
            found = path.lstat()
            yield str(path.relative_to(folder)), found.st_size, found.st_mtime_ns
