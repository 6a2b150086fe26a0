"""Places on disks as checks look at them: what is there of a folder, and how a file begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

MOST_BYTES = 2**20
READ_LIMIT_S = 1.0


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there; the disk may not answer."""
    while not folder.exists():
        folder = folder.parent
    return folder


def is_used(subject: Subject, tool: str) -> bool:
    """Whether the run is seen to use a tool: a variable of it is set, or command or script name it.

    Args:
        subject: The run.
        tool: In lower case.
    """
    if any(name.startswith(f"{tool.upper()}_") for name in subject.environment):
        return True
    if tool in " ".join(subject.command).lower().split():
        return True
    script = subject.launch.script
    try:
        return script is not None and tool.encode() in beginning(Path(script), READ_LIMIT_S).lower()
    except (OSError, NoAnswerFromStorage):
        return False


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
