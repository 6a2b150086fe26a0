"""Files below a place as a tree: sizes at the right, what is too much counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.text.amounts import bytes_in_words, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_IN_A_FOLDER = 6
"""Entries shown of one folder: the first ones and the last, of steps the newest."""
MOST_LINES = 30
NAME_WIDTH = 36


class _Folder(Struct):
    """A folder with all that is below it."""

    folders: dict[str, _Folder]
    files: dict[str, int]

    @property
    def size(self) -> int:
        return sum(self.files.values()) + sum(one.size for one in self.folders.values())

    @property
    def count(self) -> int:
        return len(self.files) + sum(one.count for one in self.folders.values())


def tree(files: Mapping[str, int]) -> tuple[str, ...]:
    """Draw a tree.

    Args:
        files: Bytes by the path from its root, folders divided by ``/``.

    Returns:
        Lines; the last one counts what did not fit.
    """
    root = _Folder({}, {})
    for path, size in files.items():
        *folders, name = path.split("/")
        folder = root
        for one in folders:
            folder = folder.folders.setdefault(one, _Folder({}, {}))
        folder.files[name] = size
    lines = list(_lines(root, ""))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... {several(len(lines) - MOST_LINES, 'more line')}"]
    return tuple(lines)


def _lines(folder: _Folder, indent: str) -> Iterator[str]:
    names = sorted((*folder.folders, *folder.files), key=_by_number)
    first, last = names[: MOST_IN_A_FOLDER - 1], names[-1:]
    hidden = max(0, len(names) - MOST_IN_A_FOLDER)
    for name in names if not hidden else (*first, "", *last):
        if not name:
            yield f"{indent}... {hidden} more"
        elif name in folder.folders:
            inside = folder.folders[name]
            told = f"{several(inside.count, 'file')}, {bytes_in_words(inside.size)}"
            yield f"{indent}{name + '/':<{NAME_WIDTH - len(indent)}}  {told}"
            yield from _lines(inside, indent + "  ")
        else:
            size = bytes_in_words(folder.files[name])
            yield f"{indent}{name:<{NAME_WIDTH - len(indent)}}  {size}"


def _by_number(name: str) -> tuple[tuple[int, str], ...]:
    """step_9 before step_10: digits count by their value."""
    parts: list[str] = [""]
    for letter in name:
        if parts[-1] and parts[-1][-1].isdecimal() != letter.isdecimal():
            parts.append("")
        parts[-1] += letter
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)
