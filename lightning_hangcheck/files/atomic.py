"""Writing for this user alone, so that a reader never sees half a file.

Somebody else may have been in the folder before us: nothing is written through a link, and a folder
or file of another user is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_hangcheck.files.owned_file import FACT_BYTES, read_owned

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
FOR_ALL = 0o644
"""What other programs of the machine shall read, under whatever user they run."""
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""To open a file that was not there before, neither as a file nor as a link."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OWNERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_atomically(path: Path, data: bytes, mode: int = PRIVATE_FILE) -> None:
    """Write to a temporary name beside the file, then rename.

    Args:
        path: Of the file.
        data: All of it.
        mode: For a file that others shall read; the umask counts.

    Raises:
        OSError: The folder is gone, full or not ours; the old file, if any, is untouched.
    """
    temporary = name_beside(path)
    descriptor = os.open(temporary, os.O_WRONLY | NEW_FILE, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def name_beside(path: Path) -> Path:
    """Return a name in the same folder that nobody has, on whichever node, and nobody can guess."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def create_once(path: Path, data: bytes, largest: int = FACT_BYTES) -> bytes:
    """Create a file unless it exists, and return what it holds: of several writers one wins.

    Args:
        path: Of the file.
        data: All of it.
        largest: Bytes above which what another one wrote is refused.

    Raises:
        OSError: The folder is gone, full or not ours.
    """
    temporary = name_beside(path)
    write_atomically(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return read_owned(path, largest)
    finally:
        temporary.unlink(missing_ok=True)
    return data


def open_for_append(path: Path) -> int:
    """Open a file of ours to read it and to append, or create it.

    Returns:
        A descriptor; the caller closes it.

    Raises:
        PermissionError: It is no regular file, has another name too, or belongs to somebody else.
        OSError: It cannot be opened: a link, or the folder is gone, full or not ours.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise _refused(path, "it is no file of its own; remove it")
        # its folder was found to be ours, and the owner that it shows is the one that we have there
        if found.st_uid != path.parent.stat().st_uid:
            raise _refused(path, f"it belongs to user id {found.st_uid}; remove it")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private_folder(path: Path, parts: Collection[str] | None = None) -> None:
    """Make a folder and its parents; the folder itself is for its owner alone, also an older one.

    Args:
        path: The folder.
        parts: What may be in it if it is there already. A folder with other things in it is in use
            for something else: it keeps its mode, and is refused where others may write.

    Raises:
        PermissionError: It is a link, belongs to somebody else, or is shared with others.
        OSError: It cannot be made.
    """
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True)
    except FileExistsError:
        _make_private(path, parts)


def _make_private(path: Path, parts: Collection[str] | None) -> None:
    if path.is_symlink():
        raise _refused(path, "it is a link")
    descriptor = os.open(path, _FOLDER)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() and found.st_uid != _owner_of_new(descriptor):
            raise _refused(path, f"it belongs to user id {found.st_uid}")
        if not found.st_mode & _NOT_OWNERS:
            return
        inside = os.listdir(descriptor)  # noqa: PTH208 - of this very folder, whatever its name
        if found.st_mode & stat.S_ISVTX or (parts is not None and not set(inside) <= set(parts)):
            if found.st_mode & _OTHERS_WRITE:
                raise _refused(path, "others may write there, and it is not for this run alone")
            return
        with suppress(OSError):  # a file system without modes
            os.fchmod(descriptor, PRIVATE_FOLDER)
    finally:
        os.close(descriptor)


def _owner_of_new(folder: int) -> int | None:
    """Who we are in that folder: file systems of other machines may know us by another number."""
    name = f".hangcheck-{os.urandom(4).hex()}"
    try:
        os.mkdir(name, PRIVATE_FOLDER, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
    finally:
        os.rmdir(name, dir_fd=folder)


def _refused(path: Path, why: str) -> PermissionError:
    return PermissionError(errno.EPERM, why, str(path))
