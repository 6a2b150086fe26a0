"""All that a page is made from, read within a time limit; what cannot be read is a gap.

Ranks in equal standing are one group (`equal_ranks`); the user's lines on which ranks stand are
read when the page is made (`source_lines`).
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, decode, read_owned, read_regular
from lightning_hangcheck.ledger.spending import Prices
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Gap, RankState, Verdict
from lightning_hangcheck.report.saved_run import read_record
from lightning_hangcheck.report.verdict_text import (
    Place,
    Situation,
    edges_by_source,
    name_ranks,
    situations,
)
from lightning_hangcheck.rundir import journals_of_job, read_rank
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import parse_ranks, read_utc, utc
from lightning_hangcheck.time_limit import PART_LIMIT_S, NoAnswer, SharedTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model import evidence
    from lightning_hangcheck.model.verdict import StackGroup
    from lightning_hangcheck.rundir import RunFolder


class EqualRanks(Struct, frozen=True, kw_only=True):
    """Ranks of which the verdict says the same.

    Attributes:
        situation: What they have in common.
        ranks: Ascending.
        example: The table's row of one of them.
    """

    situation: Situation
    ranks: tuple[int, ...]
    example: RankState

    @property
    def name(self) -> str:
        """For example ``ranks 0-6``."""
        return name_ranks(self.ranks)

    @property
    def state(self) -> str:
        """For example ``waits`` or ``are stuck``."""
        return self.situation.state[len(self.ranks) > 1]

    @property
    def standing(self) -> str:
        """Where they stand, in few words."""
        place = self.situation.place
        where = f"{place.function} {place.line}".strip()
        return where or self.situation.doing or self.situation.phase


def waiting_alike(groups: Sequence[EqualRanks]) -> tuple[EqualRanks, ...]:
    """Merge groups that wait for the same and differ only in where they stand."""
    merged: dict[Situation, list[EqualRanks]] = {}
    for group in groups:
        merged.setdefault(group.situation._replace(place=Place(), phase=""), []).append(group)
    return tuple(
        EqualRanks(
            situation=several[0].situation if len(several) == 1 else situation,
            ranks=tuple(sorted(rank for group in several for rank in group.ranks)),
            example=several[0].example,
        )
        for situation, several in merged.items()
    )


def equal_ranks(verdict: Verdict) -> tuple[EqualRanks, ...]:
    """Group all ranks, culprits first.

    Above 1,024 ranks a verdict's table has only culprits and one rank of each stack group; the
    others stand where that one stands.
    """
    tabled = {state.rank for state in verdict.ranks}
    untabled = {
        group.id: [rank for rank in parse_ranks(group.ranks) if rank not in tabled]
        for group in verdict.stack_groups
        if group.process == "rank"
    }
    groups = []
    for situation, states in situations(verdict, edges_by_source(verdict)):
        ranks = {state.rank for state in states}
        if not situation.is_culprit:
            for state in states:
                if state.stack_group is not None:
                    ranks.update(untabled.pop(state.stack_group, ()))
        groups.append(
            EqualRanks(situation=situation, ranks=tuple(sorted(ranks)), example=states[0])
        )
    return tuple(groups)


AROUND = 3
LARGEST_BYTES = 4 * 2**20
"""Of a source file; the largest of torch has half a megabyte."""
MOST_PLACES = 3
LONGEST_LINE = 300


class SourceLine(Struct, frozen=True):
    """One line of a file, secrets hidden."""

    number: int
    text: str


class SourceLines(Struct, frozen=True, kw_only=True):
    """The place of some ranks in the user's own code.

    Attributes:
        who: For example ``rank 3``, or ``a worker of rank 3``.
        is_culprits: Of those that the others wait for.
        lines: Three before it, itself, three after it; empty where they could not be read.
        trouble: Why they could not be read, or why they may not be what ran; empty where neither.
    """

    who: str
    is_culprits: bool
    frame: Frame
    lines: tuple[SourceLine, ...] = ()
    trouble: str = ""


def source_lines(
    verdict: Verdict, started: Mapping[int, str], folders: Mapping[int, str]
) -> tuple[SourceLines, ...]:
    """Read the lines on which culprits stand, then those where most others wait.

    Args:
        verdict: Whose stacks.
        started: When a rank's process started, ISO 8601 UTC; the run's start stands for others.
        folders: In which it started: a path on a stack may be relative.
    """
    found = []
    for group, frame, ranks, blamed in _places(verdict):
        first = ranks[0]
        who = name_ranks(ranks)
        lines, trouble = _read(
            Path(folders.get(first, "/"), frame.file),
            frame.line,
            started.get(first, verdict.started_at),
        )
        found.append(
            SourceLines(
                who=who if group.process == "rank" else f"a worker of {who}",
                is_culprits=blamed,
                frame=frame,
                lines=lines,
                trouble=trouble,
            )
        )
    return tuple(found)


def _places(verdict: Verdict) -> Iterator[tuple[StackGroup, Frame, list[int], bool]]:
    """Each line once: the culprits', their workers', then the others', most ranks first."""
    culprits = frozenset(verdict.culprits)
    seen: set[tuple[str, int]] = set()
    places = [
        (group, frame, [r for r in parse_ranks(group.ranks) if (r in culprits) is blamed], blamed)
        for blamed in (True, False)
        for group in verdict.stack_groups
        if (blamed or group.process == "rank") and (frame := users_frame(group.frames)) is not None
    ]
    for group, frame, ranks, blamed in places:
        if ranks and (frame.file, frame.line) not in seen and len(seen) < MOST_PLACES:
            seen.add((frame.file, frame.line))
            yield group, frame, ranks, blamed


def users_frame(frames: Sequence[str]) -> Frame | None:
    """Return the innermost frame of the user's own code, None where there is none."""
    read = (Frame.parse(text) for text in reversed(frames))
    return next((frame for frame in read if frame is not None and is_users(frame.file)), None)


def _read(path: Path, line: int, started: str) -> tuple[tuple[SourceLine, ...], str]:
    try:
        text = read_regular(path, LARGEST_BYTES).decode(errors="replace")
        changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name is none"
        return (), f"the file could not be read here ({why})"
    every = text.splitlines()
    if not 0 < line <= len(every):
        return (), f"the file has {len(every)} lines now: it has changed since the process started"
    first = max(1, line - AROUND)
    hidden = redact_text("\n".join(every[first - 1 : line + AROUND])).split("\n")
    lines = tuple(SourceLine(first + at, shown[:LONGEST_LINE]) for at, shown in enumerate(hidden))
    if changed > read_utc(started):
        return lines, (
            f"the file has changed since the process started ({utc(changed, 'seconds')}, the "
            f"process {started}): these may not be the lines that ran"
        )
    return lines, ""


Part = TypeVar("Part")
Entry = dict[str, Any]
MOST_JOURNALS = 32
"""As many ranks have a lane of their own; of more, one stands for each group of equals."""
MOST_ENTRIES = 200_000
"""Of all journals together, where all ranks' are read: some 600 bytes each in memory."""
JOURNALS_LIMIT_S = 10.0
"""For all of them; the rest of `SharedTime` is for what else a page needs."""
MOST_EARLIER = 50


class EarlierVerdict(Struct, frozen=True, kw_only=True):
    """A verdict of the same run that was told before."""

    number: int
    kind: str
    at: str
    summary: str


class PageFacts(Struct, frozen=True, kw_only=True):
    """All that a page is made from.

    Attributes:
        case: What the verdict was made from, None where it was not kept.
        record: run.json, None where it could not be read.
        groups: Ranks in equal standing, culprits first.
        shown: Ranks of which the page tells by themselves: culprits, and one of each other group.
        journals: Of those, in the order in which they were written.
        earlier: The verdicts before it, oldest first.
        sources: The user's own lines on which ranks stand.
        gaps: What could not be read for the page, as in a verdict.
        run_folder: As the reader should type it.
        prices: Of an hour, as far as they are known.
        goes_on: The page will be written again at the same place: it reloads itself.
    """

    verdict: Verdict
    case: Case | None = None
    record: RunRecord | None = None
    groups: tuple[EqualRanks, ...] = ()
    shown: tuple[int, ...] = ()
    journals: dict[int, tuple[Entry, ...]] = {}
    earlier: tuple[EarlierVerdict, ...] = ()
    sources: tuple[SourceLines, ...] = ()
    gaps: tuple[Gap, ...] = ()
    run_folder: str = ""
    prices: Prices = Prices()
    goes_on: bool = False


def read_page_facts(
    folder: RunFolder,
    verdict: Verdict,
    case: Case | None,
    *,
    run_folder: str,
    prices: Prices,
    gaps: Iterable[evidence.Gap],
    all_ranks: bool = False,
    goes_on: bool = False,
) -> PageFacts:
    """Read the rest of a run for its page.

    Args:
        folder: Of the run.
        verdict: The one to show.
        case: What it was made from, if it was kept.
        run_folder: As the reader should type it.
        prices: Of an hour.
        gaps: What of the run could not be read before.
        all_ranks: Tell of every rank by itself, of long journals their ends only.
        goes_on: As in `PageFacts`.
    """
    parts = _Parts()
    groups = equal_ranks(verdict)
    shown = _every(verdict, case) if all_ranks else _shown(verdict, groups)
    most = MOST_ENTRIES // max(1, len(shown)) if all_ranks else None
    journals = parts.journals(folder, shown, most)
    started, folders = start_of(journals)
    return PageFacts(
        verdict=verdict,
        case=case,
        record=parts.read("run.json", lambda: read_record(folder)),
        groups=groups,
        shown=shown,
        journals=journals,
        earlier=parts.read("verdicts", lambda: _earlier(folder, verdict)) or (),
        sources=parts.read("source", lambda: source_lines(verdict, started, folders)) or (),
        gaps=(*map(Gap.of, gaps), *parts.gaps),
        run_folder=run_folder,
        prices=prices,
        goes_on=goes_on,
    )


def start_of(
    journals: Mapping[int, Iterable[Mapping[str, Any]]],
) -> tuple[dict[int, str], dict[int, str]]:
    """Return when each rank's process started, and in which folder, by its journal."""
    started: dict[int, str] = {}
    folders: dict[int, str] = {}
    for rank, entries in journals.items():
        for entry in entries:
            if entry.get("kind") == "start" and is_moment(entry.get("at")):
                started[rank] = entry["at"]
                folders[rank] = str(entry.get("folder") or "/")
    return started, folders


def is_moment(text: object) -> bool:
    """Whether a journal's ``at`` can be read: its line may be torn, or of somebody else."""
    try:
        return isinstance(text, str) and bool(read_utc(text))
    except ValueError:
        return False


class _Parts:
    """Reads part after part within one time limit."""

    def __init__(self) -> None:
        self._time = SharedTime()
        self.gaps: list[Gap] = []

    def read(
        self, what: str, work: Callable[[], Part], time_limit_s: float = PART_LIMIT_S
    ) -> Part | None:
        try:
            return self._time.within(work, time_limit_s)
        except (OSError, UnreadableRun, NoAnswer) as error:
            why = error.strerror if isinstance(error, OSError) else error.args[0]
            self.gaps.append(Gap(what, None, str(why)))
            return None

    def journals(
        self, folder: RunFolder, ranks: Sequence[int], most: int | None
    ) -> dict[int, tuple[Entry, ...]]:
        """Read them by one thread, for thousands take seconds to start; late ones are missing."""
        read: dict[int, tuple[tuple[Entry, ...], tuple[Gap, ...]]] = {}

        def work() -> bool:
            paths = journals_of_job(folder)
            for rank in ranks:
                read[rank] = _journal(paths.get(f"rank-{rank}", ()), rank, most)
            return True

        self.read("journals", work, JOURNALS_LIMIT_S)
        known = dict(read)
        self.gaps += (gap for _, gaps in known.values() for gap in gaps)
        return {rank: known[rank][0] if rank in known else () for rank in ranks}


def _journal(
    paths: Sequence[Path], rank: int, most: int | None
) -> tuple[tuple[Entry, ...], tuple[Gap, ...]]:
    """Read the last lines of a rank. A run that `attach` wrote has none; that is no gap."""
    entries, found = read_rank(paths)
    gaps = tuple(map(Gap.of, found))
    if most is not None and len(entries) > most:
        name = f"journal of rank {rank}"
        left_out = Gap(name, rank, f"all but its last {most:,} lines were left out")
        return tuple(entries[-most:]), (*gaps, left_out)
    return tuple(entries), gaps


def _shown(verdict: Verdict, groups: Iterable[EqualRanks]) -> tuple[int, ...]:
    if len(verdict.ranks) <= MOST_JOURNALS and len(verdict.ranks) == verdict.world_size:
        return tuple(state.rank for state in verdict.ranks)
    firsts = [group.ranks[0] for group in groups]
    return tuple(dict.fromkeys((*verdict.culprits[: MOST_JOURNALS // 2], *firsts)))[:MOST_JOURNALS]


def _every(verdict: Verdict, case: Case | None) -> tuple[int, ...]:
    """A verdict's table does not have them all above 1,024; its case does."""
    views = case.ranks if case is not None else ()
    return tuple(sorted({*(state.rank for state in verdict.ranks), *(view.rank for view in views)}))


def _earlier(folder: RunFolder, newest: Verdict) -> tuple[EarlierVerdict, ...]:
    found = []
    for number in folder.verdict_numbers()[-MOST_EARLIER:]:
        path = folder.numbered_verdict(number)
        try:
            verdict = decode(read_owned(path, EVIDENCE_BYTES), Verdict, str(path))
        except (OSError, UnreadableRun):
            continue  # the newest one is shown all the same, and a torn older one has no summary
        if verdict != newest:
            found.append(
                EarlierVerdict(
                    number=number,
                    kind=verdict.verdict,
                    at=verdict.detected_at,
                    summary=verdict.summary,
                )
            )
    return tuple(found)
