"""`hangcheck report --log`: the ends of all ranks and what they mean, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.wording import duration
from lightning_hangcheck.report.paragraphs import INDENT, aligned, listed, plain
from lightning_hangcheck.report.plain_logs.picture import meanings
from lightning_hangcheck.report.plain_logs.reading import read_logs
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lightning_hangcheck.report.plain_logs.rank_ends import RankEnd
    from lightning_hangcheck.report.plain_logs.reading import Logs

MOST_ROWS = 16
MOST_MEANINGS = 12
WHAT_NOW = (
    "while it still runs: hangcheck attach, which reads what each rank does now",
    "next time: hangcheck run -- COMMAND, which tells it by itself",
)


def log_report(files: Sequence[Path]) -> str:
    """Read logs and write what they tell, at most 40 lines.

    Args:
        files: Plain logs: what was written to a terminal, or SLURM's.

    Raises:
        UnreadableRun: One cannot be read, or in none is anything that tells of a rank.
    """
    return render(read_logs(files))


def render(logs: Logs) -> str:
    """Write what logs tell; ends in a newline."""
    rows = list(_rows(logs.ends.ranks))
    shown = aligned(rows[:MOST_ROWS], shrinking=(1, 2), tails=-1) if rows else []
    if len(rows) > MOST_ROWS:
        shown.append(f"{INDENT}... and {len(rows) - MOST_ROWS} more rows")
    unseen = [f"{file} is long: only its newest 64 MB were read" for file in logs.cut]
    lines = [
        f"{_how_many(logs)}, last written {duration(logs.silent_for_s)} ago",
        "",
        *shown,
        *([""] if shown else []),
        *listed("means", meanings(logs.ends), MOST_MEANINGS),
        *listed("do", WHAT_NOW, len(WHAT_NOW)),
        *listed("not seen", [*unseen, "what the ranks do now: a log tells only what they said"], 4),
    ]
    return "\n".join(lines) + "\n"


def _rows(ends: Sequence[RankEnd]) -> Iterator[tuple[str, str, str]]:
    """Ranks that said the same last share a row."""
    groups: dict[tuple[str, str, int], list[RankEnd]] = {}
    for end in ends:
        passed = (
            "no checkpoint yet"
            if end.number is None
            else f"CHECKPOINT {end.number}: {plain(end.name)}"
        )
        inside = f"in {plain(end.sections[-1])}" if end.sections else ""
        groups.setdefault((passed, inside, end.steps), []).append(end)
    for (passed, inside, _), members in groups.items():
        last = min(members, key=lambda end: end.last.elapsed_s).last
        yield (
            _names(members),
            "  ".join(filter(None, (passed, inside, plain(members[0].step)))),
            f"last line {last.clock} (+{last.elapsed_s:.0f} s)",
        )


def _names(ends: Sequence[RankEnd]) -> str:
    ranks = [end.rank for end in ends if end.rank is not None]
    others = len(ends) - len(ranks)
    named = [name_ranks(ranks)] if ranks else []
    return " and ".join([*named, *([f"{others} without a rank"] if others else [])])


def _how_many(logs: Logs) -> str:
    known = {end.rank for end in logs.ends.ranks if end.rank is not None} | set(logs.ends.queues)
    of = f" of {logs.ends.world_size}" if logs.ends.world_size else ""
    return f"logs of {len(known)}{of} ranks"
