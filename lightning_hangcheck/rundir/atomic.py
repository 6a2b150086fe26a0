"""Writing so that a reader never sees half a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.rundir.owned_file import read_owned

if TYPE_CHECKING:
    from pathlib import Path

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name beside the file, then rename.

    Raises:
        OSError: The folder is gone, full or not ours; the old file, if any, is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def create_once(path: Path, data: bytes) -> bytes:
    """Create a file unless it exists, and return what it holds: of several writers one wins.

    Raises:
        OSError: The folder is gone, full or not ours.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_atomically(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return read_owned(path)
    finally:
        temporary.unlink(missing_ok=True)
    return data


def make_private_folder(path: Path) -> None:
    """Make a folder and its parents; the folder itself is readable by its owner alone.

    Raises:
        OSError: It cannot be made.
    """
    path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
