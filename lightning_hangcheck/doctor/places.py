"""Places on disks as checks look at them: what is there of a folder, and how a file begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.files.apart import apart

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 2**20


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there; the disk may not answer."""
    while not folder.exists():
        folder = folder.parent
    return folder


def beginning(file: Path, time_limit_s: float) -> bytes:
    """Read the first MiB of a file: more than any script or configuration has.

    Args:
        file: To read.
        time_limit_s: Seconds, for a disk that does not answer.

    Raises:
        NoAnswerFromStorage: It took longer.
        OSError: It is not there, or may not be read.
    """
    return apart(time_limit_s, lambda: _beginning(file))


def _beginning(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MOST_BYTES)
