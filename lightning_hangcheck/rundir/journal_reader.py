"""Reads a journal; lines that were torn by a crash or a full disk are skipped and counted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.files.owned_file import open_owned, read_end_owned
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.rundir.layout import EARLY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LARGEST_BYTES = 32 * 1024 * 1024
"""Some 270,000 lines of a checkpoint each; what is told of a journal is its last ones."""


def read_journal(path: Path) -> tuple[list[dict[str, Any]], tuple[Gap, ...]]:
    """Read all whole lines; of a journal that is larger than 32 MiB, those at its end.

    Args:
        path: ``ranks/rank-<R>.jsonl``; it may still be written.

    Returns:
        The entries in the order in which they were written, and what could not be read.
    """
    try:
        data, left_out = read_end_owned(path, LARGEST_BYTES)
    except OSError as error:
        return [], (_gap(path, f"it cannot be read ({error.strerror})"),)
    entries, torn = parse_journal(data)
    gaps = []
    if left_out:
        gaps.append(_gap(path, f"its first {left_out:,} bytes were left out"))
    if torn:
        gaps.append(_gap(path, f"{torn} of its lines are torn: a crash or a full disk cut them"))
    for why, lines in _missing(entries).items():
        gaps.append(_gap(path, f"{lines:,} of its lines are missing: {why}"))
    return entries, tuple(gaps)


def _missing(entries: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Count the lines that a journal says it lacks, by the reason."""
    missing: dict[str, int] = {}
    for entry in entries:
        if entry.get("kind") == "dropped" and isinstance(entry.get("lines"), int):
            why = str(entry.get("why", "they came faster than they were written"))
            missing[why] = missing.get(why, 0) + entry["lines"]
    return missing


def read_early(path: Path, kind: str) -> list[dict[str, Any]]:
    """Read the lines of one kind among a journal's first MiB; none where it cannot be read.

    What is told while a script starts is there, however long its journal became since.

    Args:
        path: ``ranks/rank-<R>.jsonl``.
        kind: Of line.
    """
    try:
        with os.fdopen(open_owned(path), "rb") as file:
            lines = file.read(EARLY_BYTES).split(b"\n")
    except OSError:
        return []
    named = [line for line in lines if kind.encode() in line]
    entries, _ = parse_journal(b"\n".join(named))
    return [entry for entry in entries if entry.get("kind") == kind]


def parse_journal(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the entries of a journal's whole lines, and how many others there are."""
    entries = []
    torn = 0
    for line in filter(None, data.split(b"\n")):
        try:
            entries.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            torn += 1
    return entries, torn


def _gap(path: Path, why: str) -> Gap:
    number = path.stem.removeprefix("rank-")
    rank = int(number) if number.isdecimal() else None
    return Gap(f"journal {path.name}", rank, why, "journal")
