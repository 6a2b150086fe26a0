"""The ledger as it is read: tables on a terminal, CSV, Markdown, rows side by side, a chart."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.text.shown import one_line, seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.report.ledger_bill import Bill, Row

MOST_ROWS = 20
"""Of phases, runs and stalls on a terminal, the newest; the other forms have all."""
MOST_SLOWEST = 5
MOST_NAME, MOST_NOTE, MOST_REASON = 32, 80, 100
HEAD = ("begun", "name", "status", "time", "ranks", "share", "cost", "metrics", "commit", "seen")
COLUMNS = (
    "what", "name", "begun_at", "status", "duration_s", "ranks", "rank_hours", "share", "cost",
    "metrics", "gpus", "commit", "reason", "note",
)  # fmt: skip
MOST_CELL = 40
LEAST_SHARE = 0.01
"""What took less of every run's time is left out of a comparison."""
AMOUNTS: tuple[tuple[str, Callable[[Row], float | None], Callable[[float], str]], ...] = (
    ("time", lambda row: row.duration_s, seconds_in_words),
    ("ranks", lambda row: row.ranks, "{:.0f}".format),
    ("rank hours", lambda row: row.rank_hours, "{:.3g}".format),
    ("cost", lambda row: row.cost, "{:.2f}".format),
    ("stalled", lambda row: row.stalled_s, seconds_in_words),
)
"""Title, figure, and how it is written."""
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


def render(bill: Bill) -> str:
    """Write the newest rows, what stalls cost and what was slow, ending in a newline."""
    parts: list[str] = []
    for title, rows, cost in (
        ("phases", bill.phases, bill.phases_cost),
        ("runs", bill.runs, bill.runs_cost),
    ):
        if rows:
            total = f", {cost:.2f} in all" if cost is not None else ""
            cells = [(*_cells(row), cut(row.note, MOST_NOTE)) for row in rows[-MOST_ROWS:]]
            parts += [
                f"{title}{total}",
                *_left_out(rows),
                *lined_up([(*HEAD[:-1], ""), *cells]),
                "",
            ]
    stalls = [
        (
            cut(one.run, MOST_NAME),
            one.verdict,
            one.cause or "unknown",
            seconds_in_words(one.seconds),
            f"{one.rank_hours:.3f} rank hours",
            "-" if one.cost is None else f"{one.cost:.2f}",
            cut(one.summary, MOST_NOTE) if one.explained else "nothing told why",
        )
        for one in bill.stalls[-MOST_ROWS:]
    ]
    if stalls:
        parts += ["stalls", *_left_out(bill.stalls), *lined_up(stalls), ""]
    dearest_first = sorted((*bill.phases, *bill.runs), key=lambda row: -row.rank_hours)
    slow = [
        (cut(one.name, MOST_NAME), _took(one), cut(one.reason, MOST_REASON))
        for one in dearest_first
        if one.reason
    ]
    if slow:
        parts += ["slowest, with what was seen", *lined_up(slow[:MOST_SLOWEST]), ""]
    if bill.unreadable:
        lines = several(bill.unreadable, "line")
        parts.append(f"{lines} of the ledger could not be read: torn by a kill, or newer")
    return "\n".join(parts).rstrip() + "\n" if parts else "nothing is in the ledger yet\n"


def _left_out(rows: Sequence[object]) -> list[str]:
    older = len(rows) - MOST_ROWS
    return [f"  {older} older ones are left out: --csv, --json have all"] if older > 0 else []


def _took(row: Row) -> str:
    return "?" if row.duration_s is None else seconds_in_words(row.duration_s)


def _cells(row: Row) -> tuple[str, ...]:
    """What stands under `HEAD`, but for the last."""
    return (
        row.begun_at[:19].replace("T", " "),
        cut(row.name, MOST_NAME),
        row.status,
        _took(row),
        str(row.ranks),
        f"{row.share:.0%}",
        "-" if row.cost is None else f"{row.cost:.2f}",
        _metrics(row),
        row.commit,
    )


def _metrics(row: Row) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in row.metrics.items())


def lined_up(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align cells in columns; empty columns vanish."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True) if w).rstrip()
        for row in rows
    ]


def cut(text: str, most: int) -> str:
    """Make foreign text one harmless line of so many characters at most."""
    plain = one_line(text)
    return plain if len(plain) <= most else f"{plain[: most - 3]}..."


def render_csv(bill: Bill) -> str:
    """Write phases and runs, a line each; numbers as they are, empty where they are not known."""

    def cell(value: object) -> object:
        if isinstance(value, dict):
            return " ".join(f"{name}={number!r}" for name, number in value.items())
        if isinstance(value, tuple):
            return "; ".join(map(str, value))
        return one_line(value) if isinstance(value, str) else value

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in (*bill.phases, *bill.runs):
        writer.writerow([cell(getattr(row, column)) for column in COLUMNS])
    return text.getvalue()


def render_markdown(bill: Bill) -> str:
    """Write a section for each kind, to be pasted into a log."""
    parts = ["# Experiment log", ""]
    for title, rows in (("Phases", bill.phases), ("Runs", bill.runs)):
        seen = [[*_cells(row), "; ".join(filter(None, (row.reason, row.note)))] for row in rows]
        table = [HEAD, ["---"] * len(HEAD), *seen]
        if rows:
            parts += [f"## {title}", ""]
            parts += [f"| {' | '.join(map(_safe, cells))} |" for cells in table]
            parts.append("")
    if bill.stalls:
        parts += ["## Stalls", ""]
        for one in bill.stalls:
            money = "" if one.cost is None else f", {one.cost:.2f}"
            took = f"{seconds_in_words(one.seconds)}, {one.rank_hours:.2f} rank hours{money}"
            parts.append(f"- {one.run}: {took}: {_safe(one.summary or one.cause)}")
        parts.append("")
    return "\n".join(parts)


def _safe(text: str) -> str:
    return one_line(text).replace("|", "\\|")


def find_rows(bill: Bill, names: Sequence[str]) -> list[Row]:
    """Find the runs and phases that are named.

    Args:
        bill: All of a ledger.
        names: Each the name of a run or phase, or words that stand in a run's command. Of several
            the newest counts.

    Raises:
        BadUsage: There is none.
    """
    every = (*bill.phases, *bill.runs)
    found = []
    for name in names:
        named = [row for row in every if row.name == name]
        told = named or [row for row in bill.runs if name in row.note]
        if not told:
            known = ", ".join(dict.fromkeys(row.name for row in reversed(every))) or "nothing yet"
            sentence = f"the ledger knows no run or phase {name}"
            raise BadUsage(sentence, f"it knows {cut(known, 200)}")
        found.append(told[-1])
    return found


def render_beside(rows: Sequence[Row]) -> str:
    """Write rows beside each other; of two also how many times as much the second one is.

    Args:
        rows: At least two.
    """

    def words(title: str, of: Callable[[Row], str]) -> tuple[str, ...]:
        return (title, *(cut(of(row), MOST_CELL) for row in rows), "")

    def times(found: Sequence[float | None]) -> str:
        if len(found) != 2 or not found[0] or found[1] is None:
            return ""
        return f"{found[1] / found[0]:.2g}x"

    title = "second / first" if len(rows) == 2 else ""
    lines = [("", *(cut(row.name, MOST_CELL) for row in rows), title)]
    lines.append(words("status", lambda row: row.status))
    for name, of, in_words in AMOUNTS:
        found = [of(row) for row in rows]
        cells = ["?" if one is None else in_words(one) if one else "-" for one in found]
        lines += [(name, *cells, times(found))] * any(found)
    most: dict[str, float] = {}
    for phase, share in (item for row in rows for item in row.spent.items()):
        most[phase] = max(most.get(phase, 0.0), share)
    for phase in sorted(most, key=lambda one: -most[one]):
        took = [row.spent.get(phase, 0.0) * (row.duration_s or 0.0) for row in rows]
        cells = [
            f"{seconds_in_words(seconds)}, {row.spent[phase]:.0%}" if row.spent.get(phase) else "-"
            for row, seconds in zip(rows, took, strict=True)
        ]
        lines += [(f"in {phase}", *cells, times(took))] * (most[phase] >= LEAST_SHARE)
    lines += [
        words("metrics", _metrics),
        words("GPUs", lambda row: ", ".join(dict.fromkeys(row.gpus))),
        words("begun", lambda row: row.begun_at[:19].replace("T", " ")),
        words("command", lambda row: row.note if row.what == "run" else ""),
    ]
    seen = [f"  {row.name}: {row.reason}" for row in rows if row.reason]
    shown = lined_up([line for line in lines if any(line[1:])])
    return "\n".join([*shown, *(["", "seen", *seen] if seen else [])]) + "\n"


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
