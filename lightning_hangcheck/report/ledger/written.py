"""The ledger for other programs and for a log: CSV, and Markdown as in ``EXPERIMENT_LOG.md``."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.report.ledger.bill import Bill, Row

COLUMNS = (
    "what", "name", "begun_at", "status", "duration_s", "ranks", "rank_hours", "share", "cost",
    "metrics", "gpus", "commit", "reason", "note",
)  # fmt: skip


def render_csv(bill: Bill) -> str:
    """Write phases and runs, a line each; numbers as they are, empty where they are not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in (*bill.phases, *bill.runs):
        writer.writerow([_cell(getattr(row, column)) for column in COLUMNS])
    return text.getvalue()


def render_markdown(bill: Bill) -> str:
    """Write a section for each kind, to be pasted into a log."""
    parts = ["# Experiment log", ""]
    for title, rows in (("Phases", bill.phases), ("Runs", bill.runs)):
        if rows:
            parts += [f"## {title}", "", *_markdown(rows), ""]
    if bill.stalls:
        parts += ["## Stalls", ""]
        parts += [
            f"- {one.run}: {seconds_in_words(one.seconds)}, {one.rank_hours:.2f} rank hours"
            f"{_money(one.cost)}: {_safe(one.summary or one.cause)}"
            for one in bill.stalls
        ]
        parts.append("")
    return "\n".join(parts)


def metrics_in_words(row: Row) -> str:
    """Write ``val_acc 0.91, loss 0.3``."""
    return ", ".join(f"{name} {value:g}" for name, value in row.metrics.items())


def _markdown(rows: Sequence[Row]) -> list[str]:
    head = "| begun | name | status | time | ranks | share | cost | metrics | commit | seen |"
    return [head, "|---|---|---|---|---|---|---|---|---|---|", *map(_markdown_row, rows)]


def _markdown_row(row: Row) -> str:
    cells = (
        row.begun_at, row.name, row.status,
        "" if row.duration_s is None else seconds_in_words(row.duration_s),
        str(row.ranks), f"{row.share:.0%}", "" if row.cost is None else f"{row.cost:.2f}",
        metrics_in_words(row), row.commit, "; ".join(filter(None, (row.reason, row.note))),
    )  # fmt: skip
    return f"| {' | '.join(map(_safe, cells))} |"


def _safe(text: str) -> str:
    return one_line(text).replace("|", "\\|")


def _money(cost: float | None) -> str:
    return "" if cost is None else f", {cost:.2f}"


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, dict):
        return " ".join(f"{name}={number!r}" for name, number in value.items())
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    return one_line(value) if isinstance(value, str) else value
