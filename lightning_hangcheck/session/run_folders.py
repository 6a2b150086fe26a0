"""Chooses a session's run folder, and moves ranks' journal lines there from shared memory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lightning_hangcheck import files
from lightning_hangcheck.errors import HangcheckError, UnpreparedRunFolder, UsedRunFolder
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir import RunFolder, claim_run_folder, prepare_run_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning_hangcheck.session.session import Session


CLAIMED_WITHIN_S = 2.0
"""Time for run.json to be complete once it exists: written at once, but network disks wait."""
POLL_S = 0.05
UNUSABLE = (UnpreparedRunFolder, UsedRunFolder, OSError)


class Settled(NamedTuple):
    """The folder, and a sentence if it is not the named folder, which the caller reports."""

    folder: RunFolder
    trouble: str = ""


def settle_run_folder(session: Session) -> Settled:
    """Decide where to keep a session's run, and prepare that folder; OSError if no room is left."""
    facts = session.facts
    if facts.launched or session.run_folder_file.exists():
        return Settled(prepare_run_folder(session.run_folder))
    named = RunFolder(Path(facts.run_dir))
    try:
        _take(named, session)
    except UNUSABLE as error:
        import hashlib  # 1 ms, and hardly ever needed

        # beside the named folder, where all nodes of the job find it alike
        mark = hashlib.sha256(facts.job.encode()).hexdigest()[:8]
        other = RunFolder(named.path.with_name(f"{named.path.name}-{mark}"))
        try:
            _take(other, session)
        except UNUSABLE:
            other = temporary_run_folder()
        return _agree(session, other, kept_instead(named, error, other))
    return _agree(session, named, "")


def settle_elsewhere(session: Session, why: Exception) -> Settled:
    """Keep the run in a temporary folder, because the named folder's disk does not answer."""
    other = temporary_run_folder()
    return _agree(session, other, kept_instead(RunFolder(Path(session.facts.run_dir)), why, other))


def temporary_run_folder() -> RunFolder:
    """Make an empty run folder for temporary files; OSError if there is no room."""
    import tempfile  # 2 ms, and hardly ever needed

    return RunFolder(Path(tempfile.mkdtemp(prefix="hangcheck-run-")))


def kept_instead(named: RunFolder, why: Exception, other: RunFolder) -> str:
    """Say that a run is kept elsewhere than asked."""
    known = isinstance(why, HangcheckError)  # its sentence names the folder
    said = f"{why}" if known else f"run folder {named.path} cannot be used ({why})"
    return f"{said}; this run is kept in {other.path} instead"


def _agree(session: Session, found: RunFolder, trouble: str) -> Settled:
    data = files.create_once(session.run_folder_file, os.fsencode(found.path))
    agreed = RunFolder(Path(os.fsdecode(data)))
    if agreed != found:
        with suppress(OSError):  # a temporary folder of ours, still empty
            found.path.rmdir()
    return Settled(prepare_run_folder(agreed), trouble if agreed == found else "")


def _take(folder: RunFolder, session: Session) -> None:
    """Claim a folder for this job, or find that it is this job's; raises one of `UNUSABLE`."""
    facts = session.facts
    record = RunRecord(
        run_id=folder.run_id, command=facts.command, started_at=facts.started_at, job=facts.job
    )
    prepare_run_folder(folder)
    try:
        claim_run_folder(folder, encode_pretty(record))
    except UsedRunFolder:
        # find whose run it is; another process may still be writing the file
        deadline, job = time.monotonic() + CLAIMED_WITHIN_S, None
        while facts.job and job is None and time.monotonic() < deadline:
            held = files.read_fact(folder.run_file, RunRecord, files.EVIDENCE_BYTES)
            job = None if held is None else held.job
            if held is None:
                time.sleep(POLL_S)
        if not job or job != facts.job:
            raise


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
