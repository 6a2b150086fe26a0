"""A run without a verdict, as plain text: where each rank was last."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lightning_hangcheck.report.paragraphs import INDENT, aligned, labelled, listed, plain
from lightning_hangcheck.report.rank_rows import name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.report.saved_run import JournalEnd, SavedRun

MOST_ROWS = 24
MOST_GAPS = 4


def render(saved: SavedRun, run_folder: str) -> str:
    """Write what is known of a run before its first verdict.

    Args:
        saved: Without a verdict.
        run_folder: As the reader should type it.

    Returns:
        At most 40 lines, ending in a newline.
    """
    rows = list(_rows(saved.journals))
    shown = aligned(rows[:MOST_ROWS], shrinking=(1,), tails=-1) if rows else []
    if len(rows) > MOST_ROWS:
        shown.append(f"{INDENT}... and {len(rows) - MOST_ROWS} more rows, see the journals")
    gaps = [f"{gap.what}: {gap.reason}" for gap in saved.gaps]
    lines = [
        "no verdict that can be read" if saved.refused else "no verdict yet",
        "",
        *shown,
        *([""] if shown else []),
        *_command(saved),
        *listed("not seen", gaps or ["nothing"], MOST_GAPS),
        *labelled("more", f"hangcheck report {shlex.quote(run_folder)}", most=1),
    ]
    return "\n".join(lines) + "\n"


def _command(saved: SavedRun) -> list[str]:
    if saved.record is None:
        return []
    started = f"{saved.record.command}  (started {saved.record.started_at})"
    return labelled("command", started, most=3)


def _rows(journals: Sequence[JournalEnd]) -> Iterator[tuple[str, str, str]]:
    """Ranks with the same checkpoint and save share a row, which shows the earliest last line."""
    groups: dict[str, list[JournalEnd]] = {}
    for journal in journals:
        mark = journal.checkpoint
        text = f"CHECKPOINT {mark.number}: {plain(mark.name)}" if mark else "no checkpoint yet"
        kept = "" if journal.kept_step is None else f", saved at step {journal.kept_step}"
        groups.setdefault(text + kept, []).append(journal)
    for text, members in groups.items():
        last = min(member.last_at for member in members)
        yield _names(members), text, f"last line {plain(last)}" if last else ""


def _names(journals: Sequence[JournalEnd]) -> str:
    ranks = [
        int(number)
        for journal in journals
        if (number := journal.name.removeprefix("rank-")).isdecimal()
    ]
    others = len(journals) - len(ranks)
    named = [name_ranks(ranks)] if ranks else []
    return " and ".join([*named, *([f"{others} without a rank"] if others else [])])
