"""Reads a text: the lines of a log, and the stacks that somebody took into it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from lightning_hangcheck.model.log_facts import LogReading
from lightning_hangcheck.postmortem.files import NotRead
from lightning_hangcheck.postmortem.logs import read_log
from lightning_hangcheck.postmortem.stacks import (
    LARGEST,
    StackDump,
    read_stack_file,
    stack_kind,
)

if TYPE_CHECKING:
    from pathlib import Path

KIND = "log"
STACKS = "stack dump"
MOST_ODD = 0.05
"""Of the bytes of a text that no text has: control characters but tabs, lines and colours."""
_ODD = bytes(set(range(32)) - set(b"\t\n\r\x08\x0c\x1b"))


class Text(Struct, frozen=True):
    """What a text says of a job."""

    log: LogReading
    stacks: tuple[StackDump, ...] = ()


def is_text(head: bytes) -> bool:
    """Whether a file begins as a text does."""
    return len(head) - len(head.translate(None, _ODD)) <= MOST_ODD * len(head)


def read_text(path: Path, file: BinaryIO) -> Text:
    """Read a log, or a dump of stacks.

    Raises:
        NotRead: It says nothing of a job's ranks.
    """
    stacks: tuple[StackDump, ...] = ()
    head = file.peek()  # type: ignore[attr-defined]
    if stack_kind(head) is not None:
        data = file.read(LARGEST)
        stacks = read_stack_file(path, data)
        file = io.BytesIO(data)
    log = read_log(path, file)
    if not stacks and not log.facts and not log.ranks:
        raise NotRead("it is a text that says nothing of ranks")
    return Text(log, stacks)
