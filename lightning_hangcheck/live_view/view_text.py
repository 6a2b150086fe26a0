"""The live view as lines that fit a terminal: the verdict on top, the table, what is missing. Pure.

Everything foreign in it is plain text, one line each: no escape sequence or markup in a name does
anything.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lightning_hangcheck.live_view.rank_now import IN_FORCE, RankNow
from lightning_hangcheck.live_view.rank_table import fitted, rows
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.report.paragraphs import INDENT, WIDTH, fit, plain, wrapped
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks
from lightning_hangcheck.report.verdict_text.terminal import render_line
from lightning_hangcheck.text.amounts import seconds_in_words, several
from lightning_hangcheck.text.kind_styles import KIND_STYLES
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from rich.text import Text

    from lightning_hangcheck.live_view.rank_table import Row

MOST_HEADLINE = 3
MOST_GAPS, MOST_GAP_LINES = 2, 3
LEAST_ROWS = 3
UNBOUNDED_ROWS = 40
"""Of a block that no screen bounds."""
HINT = "Ctrl-C ends this view, not the run"


class Line(NamedTuple):
    """One line, with its style as rich names it; nothing is said by the style alone."""

    text: str
    style: str = ""


class RunNow(Struct, frozen=True, kw_only=True):
    """A run at one moment.

    Attributes:
        shown_folder: The run folder as the reader should type it.
        at: The moment, UTC.
        status: Whether and where it runs, in one clause.
        over: It has ended, or nothing more can be seen of it: why, in one clause; empty else.
        ranks: In the order of the table.
        gaps: What could not be read, a sentence each.
    """

    shown_folder: str
    at: datetime
    status: str
    command: str = ""
    started_at: str = ""
    over: str = ""
    verdict: Verdict | None = None
    ranks: tuple[RankNow, ...] = ()
    gaps: tuple[str, ...] = ()


def view_lines(now: RunNow, width: int = WIDTH, height: int | None = None) -> list[Line]:
    """Write the view.

    Args:
        now: The run.
        width: Columns of the terminal; the last one stays empty.
        height: Its lines; None where nothing bounds them.

    Returns:
        Lines, the last of which says how to leave, or where to read on.
    """
    room = max(20, width - 1)
    top = [*head_lines(now, room), Line("")]
    bottom = [*_gaps(now, room), Line(fit(_hint(now), room), "dim")]
    free = UNBOUNDED_ROWS if height is None else height - len(top) - len(bottom) - 1
    return [*top, *_table(rows(now.ranks, now.at), max(LEAST_ROWS, free), room), *bottom]


def head_lines(now: RunNow, room: int) -> list[Line]:
    """Write the verdict, how the run stands, and its command.

    Args:
        now: The run.
        room: Columns of a line.
    """
    return [*_headline(now, room), *_status(now, room)]


def change_key(now: RunNow) -> Hashable:
    """Return what must differ for a new block where there is no terminal.

    Steps, phases and ages differ all the time; a rank that stands otherwise, passes a checkpoint or
    saves, and another verdict, are news.
    """
    ranks = tuple((one.rank, one.standing, one.culprit, one.kept) for one in now.ranks)
    return verdict_key(now), now.over, ranks


def verdict_key(now: RunNow) -> Hashable:
    """Return what tells a verdict from the one before; its seconds do not."""
    verdict = now.verdict
    return verdict and (verdict.verdict, verdict.cause, verdict.culprits)


def _headline(now: RunNow, room: int) -> list[Line]:
    if now.verdict is None:
        return [Line("no verdict yet")]
    kind = now.verdict.verdict.upper()
    text = render_line(now.verdict).removeprefix(kind)
    lines = wrapped(text.strip(), f"{kind}  ", " " * (len(kind) + 2), MOST_HEADLINE, room)
    return [Line(fit(line, room), KIND_STYLES[kind]) for line in lines]


def _status(now: RunNow, room: int) -> list[Line]:
    told = (
        f", {now.verdict.verdict} told {_ago(now.verdict.detected_at, now.at)}"
        if (now.verdict is not None and now.verdict.verdict in IN_FORCE)
        else ""
    )
    status = f"{now.at:%H:%M:%S}Z  {now.over or now.status}{told}"
    return [Line(fit(plain(status), room)), Line(fit(plain(now.command), room), "dim")]


def _ago(at: str, now: datetime) -> str:
    try:
        seconds = max(0.0, (now - read_utc(at)).total_seconds())
    except ValueError:
        return ""
    return f"{seconds_in_words(round(seconds))} ago" if seconds >= 1 else "just now"


def _table(every: Sequence[Row], free: int, room: int) -> list[Line]:
    if not every:
        return [Line("no rank has come yet")]
    shown = every if len(every) <= free - 1 else every[: max(1, free - 2)]
    titles, *lines = fitted(shown, room)
    table = [Line(titles, "bold"), *map(Line, lines, (row.style for row in shown))]
    left = [one.rank for row in every[len(shown) :] for one in row.ranks]
    if left:
        table.append(
            Line(fit(f"... and {several(len(left), 'rank')} more: {name_ranks(left)}", room))
        )
    return table


def _gaps(now: RunNow, room: int) -> list[Line]:
    lines = [
        Line(fit(line, room), "dim")
        for gap in now.gaps[:MOST_GAPS]
        for line in wrapped(gap, "not seen: ", INDENT, MOST_GAP_LINES, room)
    ]
    more = len(now.gaps) - MOST_GAPS
    return [*lines, Line(f"not seen: {more} more", "dim")] if more > 0 else lines


def _hint(now: RunNow) -> str:
    report = f"hangcheck report {plain(now.shown_folder)}"
    return report if now.over else f"{HINT}; more: {report}"


def painted(lines: Sequence[Line]) -> Text:
    """Lay its style over each line; markup in a line is text."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for number, line in enumerate(lines):
        text.append("\n" * bool(number) + line.text, line.style or None)
    return text
