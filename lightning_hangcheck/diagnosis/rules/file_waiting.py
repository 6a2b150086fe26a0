"""What `filesystem_wait` and `checkpoint_io` share: ranks blocked in file input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.finding import Finding, Situation, blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, within
from lightning_hangcheck.model.evidence import PAGE_FAULT
from lightning_hangcheck.model.verdict import EvidenceItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.scene import RankReading
    from lightning_hangcheck.model.evidence import WaitTarget
    from lightning_hangcheck.model.slugs import Cause


def waiting_for_files(situation: Situation) -> list[RankReading]:
    """Return suspects that are blocked in a file's input or output."""
    return [one for one in situation.suspects_that_are("idle") if file_of(one) is not None]


def file_of(reading: RankReading) -> WaitTarget | None:
    """Return the file that a rank waits for."""
    return next((one for one in reading.targets if one.kind in ("file", "fifo")), None)


def blame_for_file(
    situation: Situation, waiting: Sequence[RankReading], cause: Cause, doing: str
) -> Finding:
    """Blame ranks that are blocked in files.

    Args:
        situation: At hand.
        waiting: At least one, of `waiting_for_files`.
        cause: Slug.
        doing: What for, or nothing.
    """
    first = waiting[0]
    file = file_of(first)
    sentence = join(
        name_ranks(one.rank for one in waiting),
        f"{'has' if len(waiting) == 1 else 'have'} been blocked {duration(first.silence_s)}",
        _in_words(file) if file is not None else "",
        doing,
        within(first.place),
    )
    finding = blame(
        waiting,
        cause,
        situation.certainty("idle"),
        0.85 if situation.waited_for else 0.5,
        sentence,
        waited_for=situation.waited_for,
    )
    aspect = file.kind if file is not None else None
    return replace(finding, aspect=aspect, evidence=tuple(map(_evidence, waiting[:4])))


def _in_words(file: WaitTarget) -> str:
    if file.call == PAGE_FAULT:
        return "reading a page of a file that is mapped into its memory"
    name = file.name or "a file"
    if file.kind == "fifo":
        return f"in {file.call} of the FIFO {name}, whose other end nobody serves,"
    return f"in {file.call} of {name}"


def _evidence(reading: RankReading) -> EvidenceItem:
    file = file_of(reading)
    what = f"main thread is blocked {_in_words(file)}" if file is not None else ""
    return EvidenceItem("kernel", reading.rank, what)
