"""Where a session's run is kept, and how journals come there.

Ranks leave lines in shared memory; one process carries them to the run folder.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files.safe import (
    EVIDENCE_BYTES,
    create_once,
    decode,
    open_for_append,
    read_owned,
    write_atomically,
)
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir import EARLY_BYTES, RunFolder, claim_run_folder, prepare_run_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning_hangcheck.session.session import Session


CLAIMED_WITHIN_S = 2.0
"""Time for run.json to be whole once it has appeared: it is written at once, network disks wait."""
POLL_S = 0.05


class Settled(NamedTuple):
    """The folder, and a sentence if it is not the one that was named; said by who found it out."""

    folder: RunFolder
    trouble: str = ""


def settle_run_folder(session: Session) -> Settled:
    """Find out where to keep a session's run, and prepare that folder. Touches the disk.

    Raises:
        UnpreparedRunFolder: Not even a temporary folder can be had.
        OSError: Likewise, or the session is gone.
    """
    if session.facts.launched or session.run_folder_file.exists():
        return Settled(prepare_run_folder(session.run_folder))
    named = RunFolder(Path(session.facts.run_dir))
    try:
        _take(named, session)
    except (UnpreparedRunFolder, UsedRunFolder, OSError) as error:
        other = _beside(named, session) or temporary_run_folder()
        return _agree(session, other, kept_instead(named, error, other))
    return _agree(session, named, "")


def settle_elsewhere(session: Session, why: Exception) -> Settled:
    """Keep a session's run in a temporary folder, where the disk of the named one does not answer.

    Raises:
        UnpreparedRunFolder: Not even a temporary folder can be had.
        OSError: Likewise, or the session is gone.
    """
    other = temporary_run_folder()
    return _agree(session, other, kept_instead(RunFolder(Path(session.facts.run_dir)), why, other))


def temporary_run_folder() -> RunFolder:
    """Make an empty run folder where temporary files are.

    Raises:
        OSError: There is no room.
    """
    import tempfile  # 2 ms, and hardly ever needed

    return RunFolder(Path(tempfile.mkdtemp(prefix="hangcheck-run-")))


def kept_instead(named: RunFolder, why: Exception, other: RunFolder) -> str:
    """Say that a run is kept elsewhere than asked."""
    return (
        f"run folder {named.path} cannot be used: {why}; this run is kept in {other.path} instead"
    )


def _beside(named: RunFolder, session: Session) -> RunFolder | None:
    """A folder beside the named one that all nodes of the job find alike."""
    import hashlib  # 1 ms, and hardly ever needed

    mark = hashlib.sha256(session.facts.job.encode()).hexdigest()[:8]
    other = RunFolder(named.path.with_name(f"{named.path.name}-{mark}"))
    try:
        _take(other, session)
    except (UnpreparedRunFolder, UsedRunFolder, OSError):
        return None
    return other


def _agree(session: Session, found: RunFolder, trouble: str) -> Settled:
    data = create_once(session.run_folder_file, os.fsencode(found.path))
    agreed = RunFolder(Path(os.fsdecode(data)))
    if agreed != found:
        with suppress(OSError):  # a temporary one of ours, still empty
            found.path.rmdir()
    return Settled(prepare_run_folder(agreed), trouble if agreed == found else "")


def _take(folder: RunFolder, session: Session) -> None:
    """Make a folder this job's own, or find that it is.

    Raises:
        UsedRunFolder: It holds another run.
    """
    facts = session.facts
    record = RunRecord(
        run_id=folder.run_id, command=facts.command, started_at=facts.started_at, job=facts.job
    )
    prepare_run_folder(folder)
    try:
        claim_run_folder(folder, encode_pretty(record))
    except UsedRunFolder:
        if not facts.job or _job_of(folder) != facts.job:
            raise


def _job_of(folder: RunFolder) -> str:
    """Read whose run it is, with a little patience for one who is just writing it."""
    deadline, file = time.monotonic() + CLAIMED_WITHIN_S, folder.run_file
    while True:
        try:
            return decode(read_owned(file, EVIDENCE_BYTES), RunRecord, str(file)).job
        except (OSError, UnreadableRun):
            if time.monotonic() > deadline:
                return ""
        time.sleep(POLL_S)


MOST_LEFT_BYTES = 512 * 2**10
"""What one rank may have waiting, about 4,000 lines: /dev/shm is 64 MB in a container by default,
and DataLoaders need it."""
NEWEST_BYTES = 4 * 2**20
MOST_BYTES = EARLY_BYTES + 2 * NEWEST_BYTES
"""From here on a journal keeps its first MiB and its newest 4 to 8, some 20,000 lines or more: of
200,000 sections it would have 40 MB. What is kept is copied only once for each 4 MiB."""
LEFT_OUT = "a long journal keeps its first and its newest lines"
REMOVED = "its file was removed or moved while the job ran"


class Handover:
    """A rank's end: leaves lines of its journal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[Path, int] = {}

    def waiting_bytes(self) -> int:
        """Look how much of what was left has not been taken yet."""
        self._waiting = {path: size for path, size in self._waiting.items() if path.exists()}
        return sum(self._waiting.values())

    def leave(self, journal: str, lines: bytes) -> None:
        """Leave whole lines for a journal.

        Raises:
            OSError: Shared memory is full, or the session is gone.
        """
        batch = self._folder / f"{time.monotonic_ns():020d}.{os.getpid()}.{journal}"
        write_atomically(batch, lines)
        self._waiting[batch] = len(lines)


class Carrier:
    """The other end: appends what was left to the journals in the run folder.

    Args:
        left: The session's ``journals``.
        prepare: Makes the run folder and returns it; called when there is something to carry.
        seen: Told all lines on their way, before they are written.

    Attributes:
        removed: Journals that somebody removed while they were written, and the lines lost so.
    """

    def __init__(
        self,
        left: Path,
        prepare: Callable[[], RunFolder],
        seen: Callable[[bytes], object] = bool,
    ) -> None:
        self.removed: dict[str, int] = {}
        self._left = left
        self._prepare = prepare
        self._seen = seen
        self._journals: dict[str, _Journal] = {}
        self._lost: dict[str, _Lost] = {}

    def carry(self, only_pid: int | None = None) -> None:
        """Carry all that was left, in that order; blocks for as long as the disk does.

        Raises:
            UnpreparedRunFolder: The run folder cannot be made.
            OSError: A journal cannot be written; those lines are lost, which it says once it can.
        """
        for journal, lines in self._taken(only_pid):
            self._seen(lines)
            written = self._journals.get(journal)
            if written is not None and written.is_removed():
                # begin anew: what is written to it reaches nobody
                lost = self.removed.get(journal, 0) + written.lines
                self.removed = {**self.removed, journal: lost}
                self._lose(journal, written.lines, REMOVED)
            try:
                self._append(journal, lines)
            except (OSError, UnpreparedRunFolder) as error:
                self._lose(journal, lines.count(b"\n"), str(error))
                raise

    def _append(self, journal: str, lines: bytes) -> None:
        if journal not in self._journals:
            self._journals[journal] = _Journal(self._prepare().journals / journal)
        lost = self._lost.get(journal)
        said = b"" if lost is None else _dropped(lost.lines, lost.why, lines)
        self._journals[journal].append(said + lines)
        self._lost.pop(journal, None)

    def _lose(self, journal: str, lines: int, why: str) -> None:
        """Let go of a journal, and remember what it lacks until it can say so."""
        opened, before = self._journals.pop(journal, None), self._lost.get(journal)
        if opened is not None:
            opened.close()
        self._lost[journal] = _Lost(lines + (before.lines if before is not None else 0), why)

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
                except FileNotFoundError:  # another carrier was quicker
                    continue
                yield journal, lines


class _Lost(NamedTuple):
    """Lines that a journal lacks, which it does not say yet."""

    lines: int
    why: str


class _Journal:
    """One journal in the run folder: keeps its first part and its newest lines.

    Attributes:
        lines: In it, with those that were left out.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_for_append(path)
        self._size = os.fstat(self._descriptor).st_size
        before = os.pread(self._descriptor, self._size, 0)
        self.lines = before.count(b"\n")
        self._largest = MOST_BYTES
        if before and not before.endswith(b"\n"):
            self._size += os.write(self._descriptor, b"\n")

    def append(self, lines: bytes) -> None:
        """Write whole lines; now and then the middle of a long journal is left out.

        Raises:
            OSError: They cannot be written.
        """
        if os.write(self._descriptor, lines) < len(lines):
            raise OSError("the disk is full: it took only a part")
        self._size += len(lines)
        self.lines += lines.count(b"\n")
        if self._size > self._largest:
            self._largest = self._size + NEWEST_BYTES
            with suppress(OSError):  # it grows on, and the next time it may do
                self._leave_middle_out()

    def is_removed(self) -> bool:
        """Whether its file is no longer the one that is found under its name."""
        try:
            return not os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _leave_middle_out(self) -> None:
        """Keep a copy of the rest under its name; those who read the old file are not disturbed."""
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        earlier = data.find(b'"why":"' + LEFT_OUT.encode())
        first = data[: data.rfind(b"\n", 0, EARLY_BYTES if earlier < 0 else earlier) + 1]
        newest = data[data.find(b"\n", len(data) - NEWEST_BYTES) + 1 :]
        between = data[len(first) : len(data) - len(newest)]
        kept = first + _dropped(_lines_told_by(between), LEFT_OUT, between) + newest
        write_atomically(self._path, kept)
        old, self._descriptor = self._descriptor, open_for_append(self._path)
        os.close(old)
        self._size, self._largest = len(kept), MOST_BYTES


def _dropped(lines: int, why: str, beside: bytes) -> bytes:
    """Say that lines are missing, with moment and process of the first one beside them."""
    head = _parsed(beside.partition(b"\n")[0])
    told = {name: head[name] for name in ("at", "ns", "pid") if name in head}
    return msgspec.json.encode(told | {"kind": "dropped", "lines": lines, "why": why}) + b"\n"


def _lines_told_by(part: bytes) -> int:
    """Count the lines of a part of a journal, with those that it says are missing there."""
    lines = part.splitlines()
    told = (_parsed(line).get("lines", 0) for line in lines if b'"kind":"dropped"' in line)
    missing = [count for count in told if isinstance(count, int) and count]
    return len(lines) - len(missing) + sum(missing)


def _parsed(line: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        parsed = msgspec.json.decode(line, type=dict[str, Any])
    return parsed
