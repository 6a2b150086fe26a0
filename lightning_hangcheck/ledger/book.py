"""The file of the ledger: lines are only ever appended, each by one write(2).

So lines of several processes never mix, and whoever is killed while writing loses at most its own
last line. Storage that does not answer is the caller's to bound.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.atomic import make_private_folder, open_for_append, write_atomically
from lightning_hangcheck.files.decoding import unreadable
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.ledger.records import AnyLine
from lightning_hangcheck.model.codec import encode, encode_pretty
from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.rundir.layout import RUNS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable

LEDGER_FILE = "ledger.jsonl"
STATE_FILE = "state.json"


class Pages(msgspec.Struct, frozen=True):
    """What a ledger holds.

    Attributes:
        unreadable: How many lines were skipped: torn by a kill, or of a newer version.
    """

    lines: tuple[AnyLine, ...] = ()
    unreadable: int = 0


def find_ledger(named: str | None) -> Path:
    """Return the named ledger, or the one of the working folder; the disk is not touched."""
    return Path(named or f"{RUNS_FOLDER}/{LEDGER_FILE}").absolute()


def append(ledger: Path, line: AnyLine) -> None:
    """Append a line; a torn one before it is left alone, on a line of its own.

    Raises:
        OSError: The disk is full or may not be written, or the file is not ours.
    """
    _prepare_folder(ledger.parent)
    data = encode(line) + b"\n"
    descriptor = open_for_append(ledger)
    try:
        if _is_torn(descriptor):
            data = b"\n" + data
        written = os.write(descriptor, data)
    finally:
        os.close(descriptor)
    if written < len(data):
        raise OSError(f"only {written} of {len(data)} bytes fitted")


def write_state(ledger: Path, state: msgspec.Struct) -> None:
    """Renew ``state.json`` beside the ledger: the same for people to open.

    Raises:
        OSError: The disk is full or may not be written.
    """
    write_atomically(ledger.with_name(STATE_FILE), encode_pretty(state))


def read(ledger: Path) -> Pages:
    """Read a whole ledger; lines that cannot be read are counted.

    Raises:
        UnreadableRun: There is no such file, or it is none of ours.
    """
    try:
        data = read_owned(ledger, EVIDENCE_BYTES)
    except FileNotFoundError as error:
        raise UnreadableRun(
            f"there is no ledger {ledger}",
            "name one with --ledger, or begin one: hangcheck run, or hc.phase in a script",
        ) from error
    except OSError as error:
        raise unreadable(ledger, error) from error
    return read_lines(data.splitlines())


def read_lines(lines: Iterable[bytes]) -> Pages:
    """Make records of a ledger's lines."""
    records: list[AnyLine] = []
    skipped = 0
    for line in filter(None, lines):
        try:
            records.append(json_decoder(AnyLine).decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            skipped += 1
    return Pages(tuple(records), skipped)


def _prepare_folder(folder: Path) -> None:
    """Ours alone where the name says that it is ours; a folder that somebody named is theirs."""
    if folder.name == RUNS_FOLDER:
        make_private_folder(folder)
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _is_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
