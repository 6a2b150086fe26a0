"""Runs and phases of a ledger beside each other: a line a figure, a column a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report.ledger.table import cut, lined_up
from lightning_hangcheck.report.ledger.written import metrics_in_words
from lightning_hangcheck.text.amounts import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.report.ledger.bill import Bill, Row

WIDEST = 40
LEAST_SHARE = 0.01
"""What took less of every run's time is left out."""
Amount = tuple[str, "Callable[[Row], float | None]", "Callable[[float], str]"]
AMOUNTS: tuple[Amount, ...] = (
    ("time", lambda row: row.duration_s, seconds_in_words),
    ("ranks", lambda row: row.ranks, "{:.0f}".format),
    ("rank hours", lambda row: row.rank_hours, "{:.3g}".format),
    ("cost", lambda row: row.cost, "{:.2f}".format),
    ("stalled", lambda row: row.stalled_s, seconds_in_words),
)
"""Title, figure, and how it is written."""


def render(rows: Sequence[Row]) -> str:
    """Write a table; with two columns how many times as much the second one is.

    Args:
        rows: At least two.
    """
    lines = [("", *(cut(row.name, WIDEST) for row in rows), _times_title(rows))]
    lines += [_words("status", rows, lambda row: row.status)]
    lines += [_amount(rows, *amount) for amount in AMOUNTS]
    lines += [_share(rows, phase) for phase in _phases(rows)]
    lines += [
        _words("metrics", rows, metrics_in_words),
        _words("GPUs", rows, lambda row: ", ".join(dict.fromkeys(row.gpus))),
        _words("begun", rows, lambda row: row.begun_at[:19].replace("T", " ")),
        _words("command", rows, lambda row: row.note if row.what == "run" else ""),
    ]
    shown = [line for line in lines if any(line[1:])]
    seen = [f"  {row.name}: {row.reason}" for row in rows if row.reason]
    told = ["", "seen", *seen] if seen else []
    return "\n".join([*lined_up(shown), *told]) + "\n"


def find_rows(bill: Bill, names: Sequence[str]) -> list[Row]:
    """Find the runs and phases that are named.

    Args:
        bill: All of a ledger.
        names: Each the name of a run or phase, or words that stand in a run's command. Of several
            the newest counts.

    Raises:
        BadUsage: There is none.
    """
    return [_find(bill, name) for name in names]


def _find(bill: Bill, name: str) -> Row:
    every = (*bill.phases, *bill.runs)
    named = [row for row in every if row.name == name]
    told = named or [row for row in bill.runs if name in row.note]
    if told:
        return told[-1]
    known = ", ".join(dict.fromkeys(row.name for row in reversed(every))) or "nothing yet"
    raise BadUsage(f"the ledger knows no run or phase {name}", f"it knows {cut(known, 200)}")


def _times_title(rows: Sequence[Row]) -> str:
    return "second / first" if len(rows) == 2 else ""


def _words(title: str, rows: Sequence[Row], of: Callable[[Row], str]) -> tuple[str, ...]:
    return (title, *(cut(of(row), WIDEST) for row in rows), "")


def _amount(
    rows: Sequence[Row],
    title: str,
    of: Callable[[Row], float | None],
    in_words: Callable[[float], str],
) -> tuple[str, ...]:
    found = [of(row) for row in rows]
    if not any(found):
        return (title, *("" for _ in rows), "")
    cells = ["?" if one is None else in_words(one) if one else "-" for one in found]
    return (title, *cells, _times(found))


def _times(found: Sequence[float | None]) -> str:
    if len(found) != 2 or not found[0] or found[1] is None:
        return ""
    return f"{found[1] / found[0]:.2g}x"


def _phases(rows: Sequence[Row]) -> list[str]:
    """What the ranks of any of them did for a share worth telling, the largest share first."""
    most: dict[str, float] = {}
    for row in rows:
        for phase, share in row.spent.items():
            most[phase] = max(most.get(phase, 0.0), share)
    largest_first = sorted(most, key=lambda phase: -most[phase])
    return [phase for phase in largest_first if most[phase] >= LEAST_SHARE]


def _share(rows: Sequence[Row], phase: str) -> tuple[str, ...]:
    shares = [row.spent.get(phase, 0.0) for row in rows]
    seconds = [share * (row.duration_s or 0.0) for row, share in zip(rows, shares, strict=True)]
    cells = [
        f"{seconds_in_words(took)}, {share:.0%}" if share else "-"
        for took, share in zip(seconds, shares, strict=True)
    ]
    return (f"in {phase}", *cells, _times(seconds))
