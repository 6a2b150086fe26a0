"""Reads a run's folder: verdict, case, journals; defines the state of a running rank."""

from __future__ import annotations

import time
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import EVIDENCE_BYTES, decode, read_owned, unreadable
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import MOST_RANKS, LastCheckpoint, Verdict
from lightning_hangcheck.report.journals import journals_of_job, newest_case, read_rank
from lightning_hangcheck.rundir import CASE_FILE
from lightning_hangcheck.text.shown import parse_ranks
from lightning_hangcheck.time_limit import PART_LIMIT_S, READING_LIMIT_S, NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lightning_hangcheck.rundir import RunFolder

Fact = TypeVar("Fact", bound=msgspec.Struct)
Part = TypeVar("Part")


class JournalEnd(Struct, frozen=True, kw_only=True):
    """The end of one rank's journal.

    Attributes:
        name: ``rank-3``, or ``pid-4711`` if the rank is unknown.
        checkpoint: The last one passed by the rank's newest process; None before the first.
        kept_step: Step of the last checkpoint saved or resumed from; None if there is none.
    """

    name: str
    checkpoint: LastCheckpoint | None = None
    kept_step: int | None = None

    @property
    def rank(self) -> int | None:
        """The rank; None if unknown."""
        number = self.name.removeprefix("rank-")
        return int(number) if number.isdecimal() else None


class SavedRun(Struct, frozen=True, kw_only=True):
    """A run, as far as its folder shows.

    Attributes:
        verdict: The newest verdict, or one judged from the newest evidence; None before the first.
        journals: By rank; read only if there is no verdict.
        refused: Why the verdict cannot be read; empty if it can, or does not exist yet.
    """

    record: RunRecord | None = None
    verdict: Verdict | None = None
    case: Case | None = None
    journals: tuple[JournalEnd, ...] = ()
    refused: str = ""
    gaps: tuple[Gap, ...] = ()


def read_saved_run(folder: RunFolder) -> SavedRun:
    """Read a run, whether it has ended or not.

    Evidence without a readable verdict (full disk, folder copied in part) is judged again, which
    gives the same verdict on any machine. An unreadable part does not affect the others.

    Raises:
        UnreadableRun: The folder holds no run, or nothing of it can be read.
    """
    parts = Parts()
    verdict = parts.read(folder.verdict_file, lambda: read_fact(folder.verdict_file, Verdict))
    if verdict is not None:
        case, lost = parts.read(folder.path, lambda: _case_of(folder, verdict)) or (None, ())
        return SavedRun(verdict=verdict, case=case, gaps=(*parts.gaps, *lost))
    case, torn = parts.read(folder.path / "evidence", lambda: newest_case(folder)) or (None, ())
    if case is not None:
        return SavedRun(verdict=judge(case), case=case, gaps=(*parts.gaps, *torn))
    refused = parts.refused
    record = parts.read(folder.run_file, lambda: read_fact(folder.run_file, RunRecord))
    journals = parts.read(folder.path / "ranks", lambda: journals_of_job(folder)) or {}
    if not journals and (record is None or parts.refused is not None):
        raise parts.refused or UnreadableRun(
            f"{folder.path} holds no run", "name the folder that hangcheck run printed"
        )
    found = [
        parts.read(paths[0], partial(_journal_end, name, paths)) for name, paths in journals.items()
    ]
    ends = [end for end in found if end is not None]
    return SavedRun(
        record=record,
        journals=tuple(end for end, _ in ends),
        refused="" if refused is None else str(refused),
        gaps=(*parts.gaps, *torn, *(gap for _, gaps in ends for gap in gaps)),
    )


class Parts:
    """Reads parts one after another within one time limit; a failed or late part is a gap.

    Attributes:
        refused: Why the first failed part could not be read.
    """

    def __init__(self) -> None:
        self._deadline = time.monotonic() + READING_LIMIT_S
        self.gaps: list[Gap] = []
        self.refused: UnreadableRun | None = None

    def read(
        self, source: Path, work: Callable[[], Part], time_limit_s: float = PART_LIMIT_S
    ) -> Part | None:
        """Read one part; None if that fails."""
        try:
            return within(max(0.0, min(time_limit_s, self._deadline - time.monotonic())), work)
        except UnreadableRun as error:
            refused = error
        except OSError as error:
            refused = unreadable(source, error)
        except NoAnswer as error:
            refused = UnreadableRun(
                f"{source} cannot be read ({error})",
                f"see whether its disk answers: df {quote(str(source))}",
            )
        self.refused = self.refused or refused
        why = str(refused.args[0])
        self.gaps.append(Gap(source.name, None, why, "saved_evidence", refused.remedy))
        return None


def read_fact(path: Path, kind: type[Fact]) -> Fact | None:
    """Read a file that we wrote; None if it does not exist.

    Raises:
        UnreadableRun: It may not be read, or has another content.
    """
    try:
        fact = decode(read_owned(path, EVIDENCE_BYTES), kind, str(path))
        for group in fact.stack_groups if isinstance(fact, Verdict) else ():
            parse_ranks(group.ranks, MOST_RANKS)
    except FileNotFoundError:
        return None
    except ValueError as error:
        remedy = "name another run folder, or run again"
        raise UnreadableRun(f"{path} cannot be read ({error})", remedy) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return fact


def _case_of(folder: RunFolder, verdict: Verdict) -> tuple[Case | None, tuple[Gap, ...]]:
    """Return the newest numbered verdict's case if that verdict is shown; a gap if it is lost."""
    number = max(folder.verdict_numbers(), default=0)
    try:
        if read_fact(folder.numbered_verdict(number), Verdict) != verdict:
            return None, ()
        return read_fact(folder.evidence(number) / CASE_FILE, Case), ()
    except (OSError, UnreadableRun) as error:
        return None, (Gap(f"evidence of verdict {number}", None, str(error), "saved_evidence"),)


def _journal_end(name: str, paths: Sequence[Path]) -> tuple[JournalEnd, tuple[Gap, ...]]:
    entries, gaps = read_rank(paths)
    checkpoint, kept_step = None, None
    for entry in entries:
        kind = entry.get("kind")
        if kind == "start":
            checkpoint, kept_step = None, None
        elif kind in ("saved", "resumed") and isinstance(entry.get("step"), int):
            kept_step = entry["step"]
        elif kind == "checkpoint" and isinstance(entry.get("number"), int):
            checkpoint = LastCheckpoint(
                entry["number"], str(entry.get("name", "")), str(entry.get("at", ""))
            )
    return JournalEnd(name=name, checkpoint=checkpoint, kept_step=kept_step), gaps


class RunningRank(Struct, frozen=True, kw_only=True):
    """A running rank.

    Attributes:
        step_s: Median seconds of its last steps, or of its beats if it reports no steps; None if
            not measured yet.
        cpu_s: Processor time of all its threads so far; None if unreadable.
        memory_bytes: Its resident memory; None if unreadable.
    """

    rank: int
    beat: Beat
    silent_s: float
    step_s: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None
