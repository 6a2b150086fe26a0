"""Moves ranks' journal lines from shared memory into the run folder, and keeps journals short.

A rank leaves lines in segments ``<time>.<pid>.<journal>``. A segment is a head and whole lines; the
head says how many bytes the rank has written, and how many a carrier has moved. A segment goes once
all of it is moved and its rank writes to a later one, or has ended. A rank's newest segment names
its journal. Lines of a rank whose number is unknown wait; if it has ended, or they are too many,
they go to ``pid-<PID>.jsonl``.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from struct import Struct

from lightning_hangcheck import files
from lightning_hangcheck.errors import UnpreparedRunFolder

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from lightning_hangcheck.rundir import RunFolder


HEAD, POSITION = Struct("@QQ"), Struct("@Q")
MOST_UNNAMED = 4  # segments of a rank that wait for its number: about 1,000 lines
EARLY_BYTES = 2**20  # always kept: what is reported while a script starts
NEWEST_BYTES = 4 * 2**20
MOST_BYTES = EARLY_BYTES + 2 * NEWEST_BYTES
"""A larger journal keeps its first MiB and its newest 4 to 8 MiB, some 20,000 lines or more;
200,000 sections would take 40 MB. The kept part is copied only once per 4 MiB."""
LEFT_OUT = "a long journal keeps its first and its newest lines"
REMOVED = "its file was removed or moved while the job ran"


class Carrier:
    """Appends ranks' waiting lines to the journals in the run folder, which ``prepare`` makes.

    ``seen`` gets all written lines. ``removed`` has the journals that somebody removed while they
    were written, and how many lines were lost by that.
    """

    def __init__(
        self,
        left: Path,
        prepare: Callable[[], RunFolder],
        seen: Callable[[bytes], object] = bool,
    ) -> None:
        self.removed: dict[str, int] = {}
        self._left, self._prepare, self._seen = left, prepare, seen
        self._journals: dict[str, _Journal] = {}

    def carry(self, only_pid: int | None = None) -> None:
        """Move all waiting lines, in order; blocks for as long as the disk does.

        UnpreparedRunFolder if the run folder cannot be made, OSError if a journal cannot be
        written. Those lines stay where they are, and the next call tries again.
        """
        names: list[str] = []
        with suppress(OSError):
            names = sorted(os.listdir(self._left))  # noqa: PTH208 - names alone, twice a second
        segments: dict[str, list[str]] = {}
        for name in names:
            segments.setdefault(name.split(".")[1], []).append(name)
        problems: list[Exception] = []
        for pid, own in segments.items():
            journal = own[-1].split(".", 2)[2]
            has_ended = not os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - twice a second
            if not journal and (has_ended or len(own) > MOST_UNNAMED):
                journal = f"pid-{pid}.jsonl"
            if not journal or only_pid not in (None, int(pid)):
                continue
            try:
                for name in own:
                    self._move(self._left / name, journal)
                    if has_ended or name != own[-1]:
                        (self._left / name).unlink(missing_ok=True)
            except (OSError, UnpreparedRunFolder) as error:
                problems.append(error)
        for problem in problems:
            raise problem

    def _move(self, path: Path, name: str) -> None:
        try:
            segment = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:  # another carrier was faster, or its rank has named its journal
            return
        try:
            # its rank may just be making it
            written, moved = HEAD.unpack(os.pread(segment, HEAD.size, 0).ljust(HEAD.size, b"\0"))
            start = max(moved, HEAD.size)
            lines = os.pread(segment, max(0, written - start), start)
            if not lines:
                return
            journal = self._journals.get(name) or _Journal(self._prepare().journals / name)
            try:
                removed = journal.append(lines)
            except FileNotFoundError:  # somebody removed the folder
                self._prepare()
                removed = journal.append(lines)
            os.pwrite(segment, POSITION.pack(start + len(lines)), POSITION.size)
        finally:
            os.close(segment)
        self._journals[name] = journal
        if removed:
            self.removed = {**self.removed, name: self.removed.get(name, 0) + removed}
        self._seen(lines)


class _Journal:
    """One journal in the run folder, open only while it is written."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._lines, self._largest = path, 0, 0, MOST_BYTES

    def append(self, lines: bytes) -> int:
        """Write whole lines or none; return how many went with a file that somebody removed."""
        descriptor, removed = files.open_for_append(self._path), 0
        try:
            size = os.fstat(descriptor).st_size
            if size < self._size:
                removed = self._lines
                lines = _dropped(removed, REMOVED, lines) + lines
            if removed or not self._size:
                before = os.pread(descriptor, size, 0)
                self._lines, self._largest = before.count(b"\n"), MOST_BYTES
                lines = b"\n" + lines if before and not before.endswith(b"\n") else lines
            if os.write(descriptor, lines) < len(lines):
                os.ftruncate(descriptor, size)
                raise OSError("the disk is full: it took only a part")
            self._size = size + len(lines)
            self._lines += lines.count(b"\n")
            if self._size > self._largest:
                self._largest = self._size + NEWEST_BYTES
                with suppress(OSError):  # the journal keeps growing; the next time may succeed
                    self._leave_middle_out(os.pread(descriptor, self._size, 0))
        finally:
            os.close(descriptor)
        return removed

    def _leave_middle_out(self, data: bytes) -> None:
        """Replace the file by a shortened copy; readers of the old file are not disturbed."""
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
        self._size, self._largest, self._lines = len(kept), MOST_BYTES, kept.count(b"\n")


def _dropped(lines: int, why: str, following: bytes) -> bytes:
    """Return a line that says lines are missing, with time and process of the line after."""
    head = _parsed(following.partition(b"\n")[0])
    stamp = {name: head[name] for name in ("at", "ns", "pid") if name in head}
    entry = stamp | {"kind": "dropped", "lines": lines, "why": why}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        parsed = json.loads(line)
        return parsed if isinstance(parsed, dict) else {}
    return {}
