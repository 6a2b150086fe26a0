"""The ledger on a terminal: phases, runs, what stalls cost, what was slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.report.ledger.bill import slowest
from lightning_hangcheck.report.ledger.written import metrics_in_words
from lightning_hangcheck.text.amounts import seconds_in_words, several
from lightning_hangcheck.text.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.report.ledger.bill import Bill, Row, StallRow

MOST_SLOWEST = 5
MOST_NAME = 32
MOST_NOTE = 80
HEAD = ("begun", "name", "status", "time", "ranks", "share", "cost", "metrics", "commit", "")


def render(bill: Bill) -> str:
    """Write the whole ledger, ending in a newline."""
    parts: list[str] = []
    for title, rows, cost in (
        ("phases", bill.phases, bill.phases_cost),
        ("runs", bill.runs, bill.runs_cost),
    ):
        if rows:
            total = f", {cost:.2f} in all" if cost is not None else ""
            parts += [f"{title}{total}", *lined_up([HEAD, *map(_cells, rows)]), ""]
    parts += _stalls(bill.stalls)
    parts += _slowest(slowest(bill)[:MOST_SLOWEST])
    if bill.unreadable:
        lines = several(bill.unreadable, "line")
        parts.append(f"{lines} of the ledger could not be read: torn by a kill, or newer")
    return "\n".join(parts).rstrip() + "\n" if parts else "nothing is in the ledger yet\n"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.begun_at[:19].replace("T", " "),
        cut(row.name, MOST_NAME),
        row.status,
        "?" if row.duration_s is None else seconds_in_words(row.duration_s),
        str(row.ranks),
        f"{row.share:.0%}",
        "-" if row.cost is None else f"{row.cost:.2f}",
        metrics_in_words(row),
        row.commit,
        cut(row.note, MOST_NOTE),
    )


def _stalls(stalls: Sequence[StallRow]) -> list[str]:
    if not stalls:
        return []
    rows = [
        (
            cut(one.run, MOST_NAME),
            one.verdict,
            one.cause or "unknown",
            seconds_in_words(one.seconds),
            f"{one.rank_hours:.3f} rank hours",
            "-" if one.cost is None else f"{one.cost:.2f}",
            cut(one.summary, MOST_NOTE) if one.explained else "nothing told why",
        )
        for one in stalls
    ]
    return ["stalls", *lined_up(rows), ""]


def _slowest(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    told = [
        (cut(row.name, MOST_NAME), seconds_in_words(row.duration_s or 0.0), cut(row.reason, 100))
        for row in rows
    ]
    return ["slowest, with what was seen", *lined_up(told), ""]


def lined_up(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align cells in columns; empty columns vanish."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    shown = range(len(widths))
    return [
        "  " + "  ".join(row[at].ljust(widths[at]) for at in shown if widths[at]).rstrip()
        for row in rows
    ]


def cut(text: str, most: int) -> str:
    """Make foreign text one harmless line of so many characters at most."""
    plain = one_line(text)
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."
