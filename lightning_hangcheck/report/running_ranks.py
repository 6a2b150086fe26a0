"""Where the ranks of a job are while it runs, as plain text: place, pace, last checkpoint, save."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.report.paragraphs import INDENT, aligned, plain
from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

PLACE, CHECKPOINT = 1, 4
MOST_BELOW = 8
"""Lines below a verdict, which has told the ranks in trouble already."""


class RunningRank(Struct, frozen=True, kw_only=True):
    """One rank that runs.

    Attributes:
        beat: Its page as it is now.
        silent_s: Seconds since its last progress.
        step_s: Median seconds of its last steps; of its beats, where it shows no steps. None where
            nobody measures it, or not yet.
        cpu_s: Processor time of all its threads so far; None where it cannot be read.
        memory_bytes: What of it is in memory now; likewise.
    """

    rank: int
    beat: Beat
    silent_s: float
    step_s: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None


class LastKept(NamedTuple):
    """The last point that a rank passed, in words, and when; empty where it told none."""

    words: str = ""
    at: str = ""


def render_below(ranks: Sequence[RunningRank], now: datetime) -> str:
    """Write what stands below the newest verdict of a run; nothing where none of its ranks runs."""
    if not ranks:
        return ""
    return "\n".join(["", "now", "", *render(ranks, now, MOST_BELOW)]) + "\n"


def render(ranks: Sequence[RunningRank], now: datetime, most: int) -> list[str]:
    """Write a line for each rank; of more than fit, those that have been silent longest.

    Args:
        ranks: At least one.
        now: For how long ago a checkpoint was.
        most: Largest number of lines, at least 2.
    """
    fitting = most if len(ranks) <= most else most - 1
    shown = sorted(ranks, key=lambda one: -one.silent_s)[:fitting]
    saved = any(one.beat.save is not None for one in ranks)
    rows = [_cells(one, now, saved) for one in sorted(shown, key=lambda one: one.rank)]
    lines = aligned(rows, shrinking=(PLACE, CHECKPOINT), tails=-1)
    if len(ranks) > fitting:
        lines.append(f"{INDENT}... and {len(ranks) - fitting} more, silent for less long")
    return lines


def _cells(one: RunningRank, now: datetime, saved: bool) -> tuple[str, ...]:
    kept = last_checkpoint(one.beat, saved=saved)
    return (
        f"rank {one.rank}",
        _place(one.beat),
        _pace(one),
        f"last sign {_age(one.silent_s)} ago",
        f"{kept.words}{_ago(kept.at, now)}",
    )


def _place(beat: Beat) -> str:
    """Phase, how far it counts, and the innermost section that its main thread is in."""
    batch = beat.batch if beat.step is None else None  # beside a step it tells the same
    counted = {"epoch": beat.epoch, "step": beat.step, "batch": batch}
    parts = [f"{name} {number}" for name, number in counted.items() if number is not None]
    if beat.main_sections:
        parts.append(f"in {plain(str(beat.main_sections[-1]))}")
    return ", ".join([beat.phase or "phase not told", *parts])


def _pace(one: RunningRank) -> str:
    if one.step_s is None:
        return ""
    unit = "beat" if one.beat.step is None else "step"
    return f"{seconds_in_words(one.step_s)} a {unit}"


def last_checkpoint(beat: Beat, *, saved: bool) -> LastKept:
    """Return the one to go on from; of a rank that makes no steps yet, the last point passed.

    Args:
        beat: Its page.
        saved: Some rank of the job saves: then the others need none of their own.
    """
    mark, save = beat.checkpoint, beat.save
    if save is not None:
        done, where = ("saved", "at") if save.number else ("goes on", "from")
        step = "" if save.step is None else f" {where} step {save.step}"
        return LastKept(f"{done}{step}", save.at)
    if beat.step is not None:
        return LastKept("" if saved else "no save yet")
    if mark is None:
        return LastKept("no checkpoint yet")
    return LastKept(f"CHECKPOINT {mark.number}: {plain(mark.name)}", mark.at)


def _ago(at: str, now: datetime) -> str:
    try:
        seconds = (now - read_utc(at)).total_seconds()
    except ValueError:
        return ""
    return f", {_age(seconds)} ago"


def _age(seconds: float) -> str:
    """Right to a tenth of a second: the page is younger than the line that tells it."""
    return seconds_in_words(max(0.1, round(seconds, 1)))
