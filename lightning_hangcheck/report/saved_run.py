"""Reads what a run left in its folder: the one place of this room that touches a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import LastCheckpoint, Verdict
from lightning_hangcheck.recorder.journal_reader import read_journal
from lightning_hangcheck.rundir.decoding import decode
from lightning_hangcheck.rundir.saved_evidence import CASE_FILE, newest_case

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from lightning_hangcheck.rundir.layout import RunFolder

Fact = TypeVar("Fact", bound=msgspec.Struct)


class JournalEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one rank's journal.

    Attributes:
        name: ``rank-3``, or ``pid-4711`` where the rank was never learnt.
        checkpoint: The last one passed, None before the first.
        last_at: Time of the last whole line, ISO 8601 UTC; empty where there is none.
    """

    name: str
    checkpoint: LastCheckpoint | None = None
    last_at: str = ""


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as far as its folder tells.

    Attributes:
        record: run.json, None where it was not written yet.
        verdict: The newest, or what the newest evidence comes to; None before the first.
        case: What that verdict was made from, None where it was not kept.
        journals: By rank; read only while there is no verdict.
        gaps: What of it could not be read.
    """

    record: RunRecord | None = None
    verdict: Verdict | None = None
    case: Case | None = None
    journals: tuple[JournalEnd, ...] = ()
    gaps: tuple[Gap, ...] = ()


def read_saved_run(folder: RunFolder) -> SavedRun:
    """Read a run, whether it still goes on or not.

    Evidence without a verdict (a disk that was full, a folder copied in part) is judged again.

    Raises:
        UnreadableRun: The folder holds no run, or a file of it is torn, not permitted, or of a
            newer schema version.
    """
    try:
        verdict = _read(folder.verdict_file, Verdict)
        if verdict is not None:
            case, lost = _case_of(folder, verdict)
            return SavedRun(verdict=verdict, case=case, gaps=lost)
        case, torn = newest_case(folder)
        if case is not None:
            return SavedRun(verdict=_judged(case), case=case, gaps=torn)
        record = _read(folder.run_file, RunRecord)
        paths = sorted((folder.path / "ranks").glob("*.jsonl"), key=_by_rank)
    except OSError as error:
        raise UnreadableRun(
            f"run folder {folder.path} cannot be read ({error.strerror})",
            "read it as the user who made it, or name another run folder",
        ) from error
    if record is None and not paths:
        raise UnreadableRun(
            f"{folder.path} holds no run", "name the folder that hangcheck run printed"
        )
    read = [(path.stem, *read_journal(path)) for path in paths]
    return SavedRun(
        record=record,
        journals=tuple(_end(name, entries) for name, entries, _ in read),
        gaps=(*torn, *(gap for _, _, gaps in read for gap in gaps)),
    )


def _judged(case: Case) -> Verdict:
    """Judge saved evidence again: it gives the verdict that was, on any machine."""
    from lightning_hangcheck.diagnosis import judge

    return judge(case)


def _read(path: Path, kind: type[Fact]) -> Fact | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(data, kind, str(path))


def _case_of(folder: RunFolder, verdict: Verdict) -> tuple[Case | None, tuple[Gap, ...]]:
    """The case of the newest numbered verdict, if that is the verdict we show.

    The verdict is shown whatever became of its evidence.
    """
    number = max(folder.verdict_numbers(), default=0)
    try:
        if _read(folder.numbered_verdict(number), Verdict) != verdict:
            return None, ()
        return _read(folder.evidence(number) / CASE_FILE, Case), ()
    except (OSError, UnreadableRun) as error:
        return None, (Gap(f"evidence of verdict {number}", None, str(error)),)


def _by_rank(path: Path) -> tuple[int, str]:
    return len(path.stem), path.stem


def _end(name: str, entries: Iterable[Mapping[str, Any]]) -> JournalEnd:
    checkpoint, last_at = None, ""
    for entry in entries:
        last_at = str(entry.get("at", last_at))
        if entry.get("kind") == "checkpoint":
            number, title = entry.get("number"), str(entry.get("name", ""))
            if isinstance(number, int):
                checkpoint = LastCheckpoint(number=number, name=title, at=last_at)
    return JournalEnd(name=name, checkpoint=checkpoint, last_at=last_at)
