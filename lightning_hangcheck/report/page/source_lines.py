"""The user's own lines with what stands around them, as the file has them now."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.files.owned_file import read_regular
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.naming.code_owner import is_users
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks
from lightning_hangcheck.text.moments import read_utc, utc
from lightning_hangcheck.text.rank_ranges import parse_ranks
from lightning_hangcheck.text.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lightning_hangcheck.model.verdict import StackGroup, Verdict

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
