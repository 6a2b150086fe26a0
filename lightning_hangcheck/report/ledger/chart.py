"""The ledger as a picture: a bar a phase and a run, runs cut up by what their ranks did."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report.ledger.table import cut
from lightning_hangcheck.text.amounts import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.report.ledger.bill import Bill, Row

MOST_BARS = 40
"""More cannot be read on one picture; the newest are drawn."""
LONGEST_NAME = 40
BAR_INCHES, WIDTH_INCHES, MARGIN_INCHES = 0.4, 11.0, 1.9
ROOM_FOR_LABELS = 1.5
"""Width by that of the longest bar: what stands behind it is about half as long."""
LEGEND = 5
"""Marks in a line of it."""
PLAIN = "#8899aa"
OTHERS = "other"
OWN_COLOURS = 9
"""Phases with a colour of their own, the rest is one: ``tab10`` of matplotlib has ten."""
HOUR_S = 3600.0


def draw(bill: Bill) -> bytes:
    """Draw phases and runs, the oldest on top, as a PNG.

    Raises:
        BadUsage: matplotlib is not installed, or nothing has a duration.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadUsage(
            f"a chart needs matplotlib ({error})", "pip install 'lightning-hangcheck[plots]'"
        ) from error
    rows = [row for row in (*bill.phases, *bill.runs) if row.duration_s][-MOST_BARS:]
    if not rows:
        raise BadUsage("there is nothing to draw in the ledger yet", "leave out --chart")
    height = MARGIN_INCHES + BAR_INCHES * len(rows)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes, colours = figure.add_subplot(), _colours(rows)
    _fill(axes, rows, colours)
    if colours:
        marks: list[Any] = [axes.barh(0, 0, color=colour) for colour in colours.values()]
        figure.legend(marks, list(colours), fontsize=8, loc="outside lower center", ncols=LEGEND)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()


def _fill(axes: Any, rows: Sequence[Row], colours: dict[str, str]) -> None:  # noqa: ANN401
    for place, row in enumerate(rows):
        left = 0.0
        for part, hours in _parts(row, colours):
            colour = colours.get(part, PLAIN)
            axes.barh(place, hours, left=left, color=colour, edgecolor="white", linewidth=0.5)
            left += hours
        axes.text(left, place, f" {_label(row)}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{row.what} {cut(row.name, LONGEST_NAME)}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0.0, ROOM_FOR_LABELS * max(row.duration_s or 0.0 for row in rows) / HOUR_S)
    axes.set_xlabel("hours")
    axes.set_title("hangcheck ledger", loc="left")


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    """A colour for each phase of the ranks' time, those first that took most of all runs."""
    hours: dict[str, float] = {}
    for row in rows:
        for phase, share in row.spent.items():
            hours[phase] = hours.get(phase, 0.0) + share * row.rank_hours
    largest_first = sorted(hours, key=lambda phase: -hours[phase])
    own = {phase: f"C{at}" for at, phase in enumerate(largest_first[:OWN_COLOURS])}
    return {**own, OTHERS: f"C{OWN_COLOURS}"} if len(largest_first) > OWN_COLOURS else own


def _parts(row: Row, colours: dict[str, str]) -> list[tuple[str, float]]:
    """The bar from left to right: hours by what the ranks did; one piece where nothing tells."""
    whole = (row.duration_s or 0.0) / HOUR_S
    parts: dict[str, float] = {}
    for phase, share in row.spent.items():
        name = phase if phase in colours else OTHERS
        parts[name] = parts.get(name, 0.0) + share * whole
    return [(name, parts[name]) for name in colours if name in parts] or [("", whole)]


def _label(row: Row) -> str:
    cost = "" if row.cost is None else f", {row.cost:.2f}"
    stalled = f", {seconds_in_words(row.stalled_s)} stalled" if row.stalled_s else ""
    ranks = f" x {row.ranks}" if row.ranks > 1 else ""
    return f"{seconds_in_words(row.duration_s or 0.0)}{ranks}{cost}{stalled}, {row.status}"
