"""The one place that opens files which somebody else may have put there.

A FIFO, a device or a socket in place of a file would hold its reader up for ever, or never end; a
file of another user could say what that user likes. So only regular files are opened, and their
size is bounded. A disk that does not answer still blocks: the reader bounds its time itself.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FACT_BYTES = 1024 * 1024
"""Of a session's small files, which have hundreds of bytes."""
EVIDENCE_BYTES = 256 * 1024 * 1024
"""Of a run folder's files: ten times the largest case that was recorded (22 kB a rank), for 1,024
ranks."""
_ROOT = 0
_SAFELY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class UnusableFile(OSError):
    """It is there, but nothing that we read; ``strerror`` says what it is."""


def open_owned(path: Path) -> int:
    """Open a file of ours for reading, without ever waiting for another process.

    It must be a regular file, no link, and belong to this user, to root, or to the owner of the
    folder that it lies in: whoever may read a colleague's run folder, or a copy, may report it.

    Returns:
        A descriptor; the caller closes it.

    Raises:
        UnusableFile: It is another kind of file, or another user put it there.
        OSError: It is gone or not permitted.
    """
    try:
        descriptor = os.open(path, _SAFELY | os.O_NOFOLLOW)
    except OSError as error:
        raise _explained(error, path) from None
    try:
        found = _refuse_irregular(descriptor, path)
        owners = (os.geteuid(), _ROOT, path.parent.stat().st_uid)
        if found.st_uid not in owners:
            why = f"it belongs to user id {found.st_uid}, its folder to another"
            raise UnusableFile(errno.EPERM, why, str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_owned(path: Path, largest: int = FACT_BYTES) -> bytes:
    """Read a whole file of ours; see `open_owned`.

    Args:
        path: The file.
        largest: Bytes above which it is refused.

    Raises:
        UnusableFile: It is no such file, or larger.
        OSError: It is gone or not permitted.
    """
    return _whole(open_owned(path), path, largest)


def read_end_owned(path: Path, largest: int) -> tuple[bytes, int]:
    """Read the end of a file of ours that grows; see `open_owned`.

    Returns:
        Its last bytes, at most ``largest``, and how many were left out before them.

    Raises:
        UnusableFile: It is no such file.
        OSError: It is gone or not permitted.
    """
    with os.fdopen(open_owned(path), "rb") as file:
        left_out = max(0, os.fstat(file.fileno()).st_size - largest)
        file.seek(left_out)
        return file.read(largest), left_out


def read_regular(path: Path, largest: int) -> bytes:
    """Read a file that anyone may own, such as a program's source; links are followed.

    Raises:
        UnusableFile: It is no regular file, or has more bytes than ``largest``.
        OSError: It is gone or not permitted.
    """
    try:
        descriptor = os.open(path, _SAFELY)
    except OSError as error:
        raise _explained(error, path) from None
    try:
        _refuse_irregular(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return _whole(descriptor, path, largest)


def _whole(descriptor: int, path: Path, largest: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        data = file.read(largest + 1) if size <= largest else b""
    if max(size, len(data)) > largest:
        why = f"it has {max(size, len(data)):,} bytes; at most {largest:,} are read"
        raise UnusableFile(errno.EFBIG, why, str(path))
    return data


def _refuse_irregular(descriptor: int, path: Path) -> os.stat_result:
    found = os.fstat(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise _unusable(_KINDS.get(stat.S_IFMT(found.st_mode), "no regular file"), path)
    return found


def _explained(error: OSError, path: Path) -> OSError:
    if error.errno == errno.ELOOP:
        return _unusable("a symbolic link", path)
    if error.errno == errno.ENXIO:  # open(2): a socket, or a device that is not there
        return _unusable("a socket or device", path)
    return error


def _unusable(kind: str, path: Path) -> UnusableFile:
    why = f"it is {kind}, not a file"
    return UnusableFile(errno.EINVAL, why, str(path))
