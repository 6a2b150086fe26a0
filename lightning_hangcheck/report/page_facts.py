"""Reads everything that a page shows, within a time limit; what cannot be read is a gap."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import read_regular
from lightning_hangcheck.model.case import Case, RankView
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import Gap, RankState, Verdict
from lightning_hangcheck.report.journals import journals_of_job, read_rank
from lightning_hangcheck.report.saved_run import Parts, read_fact
from lightning_hangcheck.report.verdict_text import (
    EqualRanks,
    equal_ranks,
    name_ranks,
    users_frame,
)
from lightning_hangcheck.text.moments import read_utc, utc
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightning_hangcheck.model import evidence
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.rundir import RunFolder

AROUND = 3
MOST_JOURNALS = 32
"""Up to this many ranks have their own lane; above, one represents each group of equals."""
MOST_ENTRIES = 200_000
"""Of all journals together, if all ranks' are read: about 600 bytes each in memory."""
Entry = dict[str, Any]


class SourceLines(NamedTuple):
    """Where some ranks are in the user's own code.

    Attributes:
        who: For example ``rank 3``, or ``a worker of rank 3``.
        is_culprits: Whether the ranks are culprits.
        lines: Numbers and texts of the line and three lines before and after, secrets hidden.
        trouble: Why they could not be read, or may not be what ran; empty otherwise.
    """

    who: str
    is_culprits: bool
    frame: Frame
    lines: tuple[tuple[int, str], ...]
    trouble: str


class PageFacts(Struct, frozen=True, kw_only=True):
    """Everything that a page shows.

    Attributes:
        case: The case behind the verdict; None if it was not kept.
        views: View of each rank in the case; the first if a rank has several.
        shown: Ranks shown individually (culprits, and one of each other group), each with its row
            of the verdict's table.
        journals: Entries of these ranks, in the order in which they were written.
        starts: Start entry of each of their processes, with time and folder.
        earlier: Earlier verdicts with their numbers, oldest first.
        gaps: What could not be read for the page, as in a verdict.
    """

    verdict: Verdict
    case: Case | None
    run_folder: str
    record: RunRecord | None
    groups: tuple[EqualRanks, ...]
    views: dict[int, RankView]
    shown: dict[int, RankState]
    journals: dict[int, tuple[Entry, ...]]
    starts: dict[int, Entry]
    earlier: tuple[tuple[int, Verdict], ...]
    sources: tuple[SourceLines, ...]
    gaps: tuple[Gap, ...]


def read_page_facts(
    folder: RunFolder,
    verdict: Verdict,
    case: Case | None,
    gaps: Iterable[evidence.Gap],
    *,
    run_folder: str,
    all_ranks: bool,
) -> PageFacts:
    """Read the rest of a run; ``all_ranks`` for a form that shows each rank individually."""
    parts = Parts()
    groups = tuple(equal_ranks(verdict))
    views = {view.rank: view for view in reversed(case.ranks if case is not None else ())}
    states = {state.rank: state for state in verdict.ranks}
    most = None
    if all_ranks:  # above 1,024 ranks a verdict's table has not all of them; its case has
        ranks = sorted({*states, *views})
        most = MOST_ENTRIES // max(1, len(ranks))
    elif len(states) <= MOST_JOURNALS and len(states) == verdict.world_size:
        ranks = list(states)
    else:
        blamed = verdict.culprits[: MOST_JOURNALS // 2]
        ranks = list(dict.fromkeys((*blamed, *(group.ranks[0] for group in groups))))
        ranks = ranks[:MOST_JOURNALS]
    shown = {}
    for rank in ranks:
        state = states.get(rank) or RankState(rank=rank, state="unseen")
        seen_on = views[rank].host if rank in views else ""
        shown[rank] = replace(state, host=state.host or seen_on)
    journals, torn = _journals(parts, folder, ranks, most)
    starts = {
        rank: entry
        for rank, entries in journals.items()
        for entry in entries
        if entry.get("kind") == "start" and moment(entry.get("at"))
    }
    return PageFacts(
        verdict=verdict,
        case=case,
        run_folder=run_folder,
        groups=groups,
        views=views,
        shown=shown,
        journals=journals,
        starts=starts,
        record=parts.read(folder.run_file, lambda: read_fact(folder.run_file, RunRecord)),
        earlier=parts.read(folder.path / "verdicts", lambda: _earlier(folder, verdict)) or (),
        sources=parts.read(Path("source"), lambda: source_lines(verdict, starts)) or (),
        gaps=(*map(Gap.of, (*gaps, *parts.gaps)), *torn),
    )


def moment(text: object) -> datetime | None:
    """Parse a journal's ``at``; None if invalid: the line may be torn or foreign."""
    try:
        return read_utc(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _journals(
    parts: Parts, folder: RunFolder, ranks: Sequence[int], most: int | None
) -> tuple[dict[int, tuple[Entry, ...]], list[Gap]]:
    """Read the last lines of each rank. Without journals (run of `attach`) there is no gap.

    One thread reads all, as thousands of threads take seconds to start. Late journals are missing.
    """
    read: dict[int, tuple[tuple[Entry, ...], list[Gap]]] = {}

    def work() -> bool:
        paths = journals_of_job(folder)
        for rank in ranks:
            entries, found = read_rank(paths.get(f"rank-{rank}", ()))
            gaps = [Gap.of(gap) for gap in found]
            if most is not None and len(entries) > most:
                left_out = f"all but its last {most:,} lines were left out"
                gaps.append(Gap(f"journal of rank {rank}", rank, left_out))
            read[rank] = tuple(entries[-(most or len(entries)) :]), gaps
        return True

    parts.read(folder.journals, work, 10.0)
    known = dict(read)  # the thread may still be writing
    gaps = [gap for _, found in known.values() for gap in found]
    return {rank: known[rank][0] if rank in known else () for rank in ranks}, gaps


def _earlier(folder: RunFolder, newest: Verdict) -> tuple[tuple[int, Verdict], ...]:
    found = []
    for number in folder.verdict_numbers()[-50:]:
        try:
            verdict = read_fact(folder.numbered_verdict(number), Verdict)
        except (OSError, UnreadableRun):
            continue  # the newest is shown anyway, and a torn older one has no summary
        if verdict is not None and verdict != newest:
            found.append((number, verdict))
    return tuple(found)


def source_lines(verdict: Verdict, starts: Mapping[int, Entry]) -> tuple[SourceLines, ...]:
    """Read the lines where culprits are, then those where most others wait, each once.

    A path on a stack may be relative to the folder in which its process started.
    """
    culprits = frozenset(verdict.culprits)
    found: dict[tuple[str, int], SourceLines] = {}
    for blamed in (True, False):
        for group in verdict.stack_groups:
            frame = users_frame(group.frames) if blamed or group.process == "rank" else None
            ranks = [rank for rank in parse_ranks(group.ranks) if (rank in culprits) is blamed]
            if frame is None or not ranks or (frame.file, frame.line) in found:
                continue
            start = starts.get(ranks[0], {})
            path = Path(str(start.get("folder") or "/"), frame.file)
            lines, trouble = _read(path, frame.line, str(start.get("at", verdict.started_at)))
            who = f"{'' if group.process == 'rank' else 'a worker of '}{name_ranks(ranks)}"
            found[frame.file, frame.line] = SourceLines(who, blamed, frame, lines, trouble)
            if len(found) == 3:
                return tuple(found.values())
    return tuple(found.values())


def _read(path: Path, line: int, started: str) -> tuple[tuple[tuple[int, str], ...], str]:
    try:
        # torch's largest file has 0.5 MB
        text = read_regular(path, 4 * 2**20).decode(errors="replace")
        changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "its name is none"
        return (), f"the file could not be read here ({why})"
    every = text.splitlines()
    if not 0 < line <= len(every):
        return (), f"the file has {len(every)} lines now: it has changed since the process started"
    first = max(1, line - AROUND)
    hidden = redact_text("\n".join(every[first - 1 : line + AROUND])).split("\n")
    trouble = ""
    if changed > read_utc(started):
        trouble = (
            f"the file has changed since the process started ({utc(changed, 'seconds')}, the "
            f"process {started}): these may not be the lines that ran"
        )
    return tuple((first + at, shown[:300]) for at, shown in enumerate(hidden)), trouble
