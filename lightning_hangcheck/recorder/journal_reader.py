"""Reads a journal; lines that were torn by a crash or a full disk are skipped and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from pathlib import Path


def read_journal(path: Path) -> tuple[list[dict[str, Any]], tuple[Gap, ...]]:
    """Read all whole lines.

    Args:
        path: ``ranks/rank-<R>.jsonl``; it may still be written.

    Returns:
        The entries in the order in which they were written, and what could not be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        return [], (_gap(path, f"it cannot be read ({error.strerror})"),)
    entries = []
    torn = 0
    for line in filter(None, data.split(b"\n")):
        try:
            entries.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            torn += 1
    gap = _gap(path, f"{torn} of its lines are torn: a crash or a full disk cut them")
    return entries, (gap,) if torn else ()


def _gap(path: Path, why: str) -> Gap:
    number = path.stem.removeprefix("rank-")
    return Gap(f"journal {path.name}", int(number) if number.isdecimal() else None, why)
