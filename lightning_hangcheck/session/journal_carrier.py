"""Moves ranks' journal lines from shared memory into the run folder, and keeps journals short."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck import files
from lightning_hangcheck.errors import UnpreparedRunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lightning_hangcheck.rundir import RunFolder


EARLY_BYTES = 2**20  # always kept: what is reported while a script starts
NEWEST_BYTES = 4 * 2**20
MOST_BYTES = EARLY_BYTES + 2 * NEWEST_BYTES
"""A larger journal keeps its first MiB and its newest 4 to 8 MiB, some 20,000 lines or more;
200,000 sections would take 40 MB. The kept part is copied only once per 4 MiB."""
LEFT_OUT = "a long journal keeps its first and its newest lines"
REMOVED = "its file was removed or moved while the job ran"


class Carrier:
    """Appends ranks' waiting lines to the journals in the run folder, which ``prepare`` makes."""

    # ``seen`` gets all lines before they are written. ``removed`` has the journals that somebody
    # removed while they were written, and how many lines were lost by that.

    def __init__(
        self,
        left: Path,
        prepare: Callable[[], RunFolder],
        seen: Callable[[bytes], object] = bool,
    ) -> None:
        self.removed: dict[str, int] = {}
        self._left, self._prepare, self._seen = left, prepare, seen
        self._journals: dict[str, _Journal] = {}
        # lines that a journal lacks, not recorded there yet, and why
        self._lost: dict[str, tuple[int, str]] = {}

    def carry(self, only_pid: int | None = None) -> None:
        """Move all waiting lines, in order; blocks for as long as the disk does."""
        # UnpreparedRunFolder if the run folder cannot be made, OSError if a journal cannot be
        # written: those lines are lost, which the journal records as soon as it can be written.
        for name, lines in self._taken(only_pid):
            self._seen(lines)
            journal = self._journals.get(name)
            if journal is not None and journal.is_removed():
                # begin anew: nobody can read what is written to it
                self.removed = {**self.removed, name: self.removed.get(name, 0) + journal.lines}
                self._lose(name, journal.lines, REMOVED)
                journal = None
            try:
                if journal is None:
                    journal = _Journal(self._prepare().journals / name)
                    self._journals[name] = journal
                missing, why = self._lost.get(name, (0, ""))
                journal.append((_dropped(missing, why, lines) if missing else b"") + lines)
                self._lost.pop(name, None)
            except (OSError, UnpreparedRunFolder) as error:
                self._lose(name, lines.count(b"\n"), str(error))
                raise

    def _lose(self, name: str, lines: int, why: str) -> None:
        """Close a journal, and remember how many lines it lacks until that can be recorded."""
        journal = self._journals.pop(name, None)
        if journal is not None:
            os.close(journal.descriptor)
        self._lost[name] = lines + self._lost.get(name, (0, ""))[0], why

    def _taken(self, only_pid: int | None) -> Iterator[tuple[str, bytes]]:
        try:
            names = os.listdir(self._left)  # noqa: PTH208 - names alone, twice a second
        except OSError:
            return
        for name in sorted(name for name in names if not name.startswith(".")):
            _, pid, journal = name.split(".", 2)
            if only_pid is None or pid == str(only_pid):
                batch = self._left / name
                try:
                    lines = batch.read_bytes()
                    batch.unlink()
                except FileNotFoundError:  # another carrier was faster
                    continue
                yield journal, lines


class _Journal:
    """One journal in the run folder: keeps its first part and its newest lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = files.open_for_append(path)
        self._size = os.fstat(self.descriptor).st_size
        before = os.pread(self.descriptor, self._size, 0)
        self.lines = before.count(b"\n")
        self._largest = MOST_BYTES
        if before and not before.endswith(b"\n"):
            self._size += os.write(self.descriptor, b"\n")

    def append(self, lines: bytes) -> None:
        """Write whole lines; now and then cut the middle of a long journal."""
        if os.write(self.descriptor, lines) < len(lines):
            raise OSError("the disk is full: it took only a part")
        self._size += len(lines)
        self.lines += lines.count(b"\n")
        if self._size > self._largest:
            self._largest = self._size + NEWEST_BYTES
            with suppress(OSError):  # the journal keeps growing; the next time may succeed
                self._leave_middle_out()

    def is_removed(self) -> bool:
        """Whether another file, or none, now has its name."""
        try:
            return not os.path.samestat(os.fstat(self.descriptor), self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def _leave_middle_out(self) -> None:
        """Replace the file by a shortened copy; readers of the old file are not disturbed."""
        data = os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)
        earlier = data.find(b'"why":"' + LEFT_OUT.encode())
        first = data[: data.rfind(b"\n", 0, EARLY_BYTES if earlier < 0 else earlier) + 1]
        newest = data[data.find(b"\n", len(data) - NEWEST_BYTES) + 1 :]
        between = data[len(first) : len(data) - len(newest)].splitlines()
        # include the lines that it already reports as missing
        counts = [_parsed(line).get("lines") for line in between if b'"kind":"dropped"' in line]
        missing = [count for count in counts if isinstance(count, int) and count]
        lines = len(between) - len(missing) + sum(missing)
        kept = first + _dropped(lines, LEFT_OUT, between[0]) + newest
        files.write_atomically(self._path, kept)
        old, self.descriptor = self.descriptor, files.open_for_append(self._path)
        os.close(old)
        self._size, self._largest = len(kept), MOST_BYTES


def _dropped(lines: int, why: str, following: bytes) -> bytes:
    """Return a line that says lines are missing, with time and process of the line after."""
    head = _parsed(following.partition(b"\n")[0])
    stamp = {name: head[name] for name in ("at", "ns", "pid") if name in head}
    return msgspec.json.encode(stamp | {"kind": "dropped", "lines": lines, "why": why}) + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(line, type=dict[str, Any])
    return {}
