"""A run without a verdict, as plain text: where each rank was last."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from lightning_hangcheck.report import running_ranks
from lightning_hangcheck.report.paragraphs import INDENT, aligned, labelled, listed, plain
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.report.running_ranks import RunningRank
    from lightning_hangcheck.report.saved_run import JournalEnd, SavedRun

MOST_ROWS = 24
MOST_GAPS = 4


def render(
    saved: SavedRun,
    run_folder: str,
    running: Sequence[RunningRank] = (),
    now: datetime | None = None,
) -> str:
    """Write what is known of a run before its first verdict.

    Args:
        saved: Without a verdict.
        run_folder: As the reader should type it.
        running: Its ranks that run here now; of the others, what their journals tell.
        now: For how long ago something was; the present by default.

    Returns:
        Lines that end in a newline: at most 40, and 24 more where other ranks run elsewhere.
    """
    moment = now or datetime.now(timezone.utc)
    told = {f"rank-{one.rank}" for one in running}
    rows = list(_rows([journal for journal in saved.journals if journal.name not in told]))
    shown = running_ranks.render(running, moment, MOST_ROWS) if running else []
    shown += aligned(rows[:MOST_ROWS], shrinking=(1,), tails=-1) if rows else []
    if len(rows) > MOST_ROWS:
        shown.append(f"{INDENT}... and {len(rows) - MOST_ROWS} more rows, see the journals")
    gaps = [f"{gap.what}: {gap.reason}" for gap in saved.gaps]
    lines = [
        _headline(saved, running),
        "",
        *shown,
        *([""] if shown else []),
        *_command(saved),
        *listed("not seen", gaps or ["nothing"], MOST_GAPS),
        *labelled("more", f"hangcheck report {shlex.quote(run_folder)}", most=1),
    ]
    return "\n".join(lines) + "\n"


def _headline(saved: SavedRun, running: Sequence[RunningRank]) -> str:
    verdict = "no verdict that can be read" if saved.refused else "no verdict yet"
    return f"{verdict}; {several(len(running), 'rank')} of it running here" if running else verdict


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
