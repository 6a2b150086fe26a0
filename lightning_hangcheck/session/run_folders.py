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

from lightning_hangcheck.errors import HangcheckError, UnpreparedRunFolder, UsedRunFolder
from lightning_hangcheck.files.safe import (
    EVIDENCE_BYTES,
    create_once,
    open_for_append,
    read_fact,
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
UNUSABLE = (UnpreparedRunFolder, UsedRunFolder, OSError)


class Settled(NamedTuple):
    """The folder, and a sentence if it is not the one that was named; said by who found it out."""

    folder: RunFolder
    trouble: str = ""


def settle_run_folder(session: Session) -> Settled:
    """Find out where to keep a session's run, and prepare that folder. Touches the disk.

    UnpreparedRunFolder or OSError where not even a temporary folder can be had.
    """
    facts = session.facts
    if facts.launched or session.run_folder_file.exists():
        return Settled(prepare_run_folder(session.run_folder))
    named = RunFolder(Path(facts.run_dir))
    try:
        _take(named, session)
    except UNUSABLE as error:
        import hashlib  # 1 ms, and hardly ever needed

        # beside the named one, where all nodes of the job find it alike
        mark = hashlib.sha256(facts.job.encode()).hexdigest()[:8]
        other = RunFolder(named.path.with_name(f"{named.path.name}-{mark}"))
        try:
            _take(other, session)
        except UNUSABLE:
            other = temporary_run_folder()
        return _agree(session, other, kept_instead(named, error, other))
    return _agree(session, named, "")


def settle_elsewhere(session: Session, why: Exception) -> Settled:
    """Keep it in a temporary folder, where the disk of the named one does not answer."""
    other = temporary_run_folder()
    return _agree(session, other, kept_instead(RunFolder(Path(session.facts.run_dir)), why, other))


def temporary_run_folder() -> RunFolder:
    """Make an empty run folder where temporary files are; OSError where there is no room."""
    import tempfile  # 2 ms, and hardly ever needed

    return RunFolder(Path(tempfile.mkdtemp(prefix="hangcheck-run-")))


def kept_instead(named: RunFolder, why: Exception, other: RunFolder) -> str:
    """Say that a run is kept elsewhere than asked."""
    known = isinstance(why, HangcheckError)  # its sentence names the folder
    said = f"{why}" if known else f"run folder {named.path} cannot be used ({why})"
    return f"{said}; this run is kept in {other.path} instead"


def _agree(session: Session, found: RunFolder, trouble: str) -> Settled:
    data = create_once(session.run_folder_file, os.fsencode(found.path))
    agreed = RunFolder(Path(os.fsdecode(data)))
    if agreed != found:
        with suppress(OSError):  # a temporary one of ours, still empty
            found.path.rmdir()
    return Settled(prepare_run_folder(agreed), trouble if agreed == found else "")


def _take(folder: RunFolder, session: Session) -> None:
    """Make a folder this job's own, or find that it is; raises one of `UNUSABLE`."""
    facts = session.facts
    record = RunRecord(
        run_id=folder.run_id, command=facts.command, started_at=facts.started_at, job=facts.job
    )
    prepare_run_folder(folder)
    try:
        claim_run_folder(folder, encode_pretty(record))
    except UsedRunFolder:
        # whose run it is, with a little patience for one who is just writing it
        deadline, job = time.monotonic() + CLAIMED_WITHIN_S, None
        while facts.job and job is None and time.monotonic() < deadline:
            held = read_fact(folder.run_file, RunRecord, EVIDENCE_BYTES)
            job = None if held is None else held.job
            if held is None:
                time.sleep(POLL_S)
        if not job or job != facts.job:
            raise


MOST_LEFT_BYTES = 512 * 2**10
"""What one rank may have waiting, about 4,000 lines: /dev/shm is 64 MB in a container by default,
and DataLoaders need it."""
NEWEST_BYTES = 4 * 2**20
MOST_BYTES = EARLY_BYTES + 2 * NEWEST_BYTES
"""From here on a journal keeps its first MiB and its newest 4 to 8, some 20,000 lines or more: of
200,000 sections it would have 40 MB. What is kept is copied only once for each 4 MiB."""
LEFT_OUT = "a long journal keeps its first and its newest lines"
REMOVED = "its file was removed or moved while the job ran"


class Carrier:
    """Appends what ranks left to the journals in the run folder, which ``prepare`` makes.

    ``seen`` is told all lines before they are written. ``removed`` has the journals that somebody
    removed while they were written, and how many lines were lost so.
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
        # lines that a journal lacks, which it does not say yet, and why
        self._lost: dict[str, tuple[int, str]] = {}

    def carry(self, only_pid: int | None = None) -> None:
        """Carry all that was left, in that order; blocks for as long as the disk does.

        UnpreparedRunFolder where the run folder cannot be made, OSError where a journal cannot be
        written: those lines are lost, which it says once it can.
        """
        for name, lines in self._taken(only_pid):
            self._seen(lines)
            journal = self._journals.get(name)
            if journal is not None and journal.is_removed():
                # begin anew: what is written to it reaches nobody
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
        """Let go of a journal, and remember what it lacks until it can say so."""
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
                except FileNotFoundError:  # another carrier was quicker
                    continue
                yield journal, lines


class _Journal:
    """One journal in the run folder: keeps its first part and its newest lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = open_for_append(path)
        self._size = os.fstat(self.descriptor).st_size
        before = os.pread(self.descriptor, self._size, 0)
        self.lines = before.count(b"\n")
        self._largest = MOST_BYTES
        if before and not before.endswith(b"\n"):
            self._size += os.write(self.descriptor, b"\n")

    def append(self, lines: bytes) -> None:
        """Write whole lines; now and then the middle of a long journal is left out."""
        if os.write(self.descriptor, lines) < len(lines):
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
            return not os.path.samestat(os.fstat(self.descriptor), self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False

    def _leave_middle_out(self) -> None:
        """Keep a copy of the rest under its name; those who read the old file are not disturbed."""
        data = os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)
        earlier = data.find(b'"why":"' + LEFT_OUT.encode())
        first = data[: data.rfind(b"\n", 0, EARLY_BYTES if earlier < 0 else earlier) + 1]
        newest = data[data.find(b"\n", len(data) - NEWEST_BYTES) + 1 :]
        between = data[len(first) : len(data) - len(newest)].splitlines()
        # with the lines that it says are missing there
        counts = [_parsed(line).get("lines") for line in between if b'"kind":"dropped"' in line]
        missing = [count for count in counts if isinstance(count, int) and count]
        lines = len(between) - len(missing) + sum(missing)
        kept = first + _dropped(lines, LEFT_OUT, between[0]) + newest
        write_atomically(self._path, kept)
        old, self.descriptor = self.descriptor, open_for_append(self._path)
        os.close(old)
        self._size, self._largest = len(kept), MOST_BYTES


def _dropped(lines: int, why: str, following: bytes) -> bytes:
    """Say that lines are missing, with moment and process of the first one beside them."""
    head = _parsed(following.partition(b"\n")[0])
    stamp = {name: head[name] for name in ("at", "ns", "pid") if name in head}
    return msgspec.json.encode(stamp | {"kind": "dropped", "lines": lines, "why": why}) + b"\n"


def _parsed(line: bytes) -> dict[str, Any]:
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(line, type=dict[str, Any])
    return {}
