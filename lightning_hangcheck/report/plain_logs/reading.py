"""Reads log files: the newest part of each, within a time limit, whatever is in it."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.report.plain_logs.rank_ends import Ends, ends_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MOST_BYTES = 64_000_000
"""Of one file: 15,000 of the longest console lines, read in about a second."""
LONGEST_LINE = 65_536
TIME_LIMIT_S = 60.0
OTHER_PATH = "name files that you may read: hangcheck report --log FILE..."


class Logs(Struct, frozen=True):
    """What all files tell, and how complete that is.

    Attributes:
        silent_for_s: Seconds since the newest file was written; never below 0.
        cut: Files of which only the newest part was read.
    """

    ends: Ends
    silent_for_s: float
    cut: tuple[str, ...]


def read_logs(files: Sequence[Path]) -> Logs:
    """Read them all.

    Raises:
        UnreadableRun: One cannot be read, or in none is anything that tells of a rank.
    """
    try:
        logs = apart(TIME_LIMIT_S, partial(_read, tuple(files)))
    except NoAnswerFromStorage as error:
        raise UnreadableRun(
            f"the logs cannot be read: {error}", "copy them to a local disk"
        ) from error
    except OSError as error:
        raise UnreadableRun(
            f"{error.filename} cannot be read ({error.strerror})", OTHER_PATH
        ) from error
    if not (logs.ends.ranks or logs.ends.queues or logs.ends.sentences):
        raise UnreadableRun(
            "no line of a rank is in these logs",
            "name the file that holds the ranks' stderr, with lines such as "
            "[10:23:45.123][+2.456s][R0/2]...",
        )
    return logs


def _read(files: tuple[Path, ...]) -> Logs:
    newest = max(file.stat().st_mtime for file in files)
    cut = tuple(str(file) for file in files if file.stat().st_size > MOST_BYTES)
    return Logs(ends_of(map(_lines, files)), max(0.0, time.time() - newest), cut)


def _lines(file: Path) -> Iterator[str]:
    """The lines of its newest part; one without end is cut, and no byte is too strange."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MOST_BYTES:
            stream.seek(size - MOST_BYTES)
        while line := stream.readline(LONGEST_LINE):
            yield line.decode(errors="replace").rstrip("\r\n")
