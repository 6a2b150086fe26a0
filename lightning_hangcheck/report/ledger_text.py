"""The ledger on a terminal: all rows, rows side by side, and a chart."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report.ledger_bill import metrics_in_words, slowest
from lightning_hangcheck.text.amounts import seconds_in_words, several
from lightning_hangcheck.text.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.report.ledger_bill import Bill, Row, StallRow

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


def render_beside(rows: Sequence[Row]) -> str:
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
