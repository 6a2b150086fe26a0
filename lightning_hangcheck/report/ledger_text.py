"""Renders the ledger: totals as tables, Markdown, CSV or a chart, and some rows side by side."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger.spending import SECONDS_PER_HOUR, Stall
from lightning_hangcheck.report.paragraphs import aligned, fit
from lightning_hangcheck.text.shown import one_line, seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.ledger.ledger_file import History, PastPhase, Run
    from lightning_hangcheck.ledger.spending import Prices

WORTH_A_REASON_S = 10.0  # Below, processor time in so few ticks says nothing, and nobody asks.
MOST_ROWS = 20  # Newest phases, runs and stalls on a terminal; the other forms show all.
CSV_COLUMNS = (
    "what", "name", "begun_at", "status", "duration_s", "ranks", "rank_hours", "share", "cost",
    "metrics", "gpus", "commit", "reason", "note",
)  # fmt: skip


class Row(Struct, frozen=True, kw_only=True):
    """A phase or a run; the cost is None if no price is known.

    Attributes:
        share: Share of the rank hours of all rows of its kind.
        reason: Why it took so long, as far as observed; empty if unknown.
        spent: For a run, its ranks' activities with their share of the time, largest first.
    """

    what: str
    name: str
    begun_at: str
    status: str
    duration_s: float | None
    ranks: int
    rank_hours: float
    share: float = 0.0
    cost: float | None
    metrics: dict[str, float] = {}
    gpus: tuple[str, ...] = ()
    commit: str = ""
    reason: str = ""
    note: str = ""
    spent: dict[str, float] = {}
    stalled_s: float = 0.0

    @property
    def took(self) -> str:
        """Duration in words."""
        return "?" if self.duration_s is None else seconds_in_words(self.duration_s)


COLUMNS: dict[str, Callable[[Row], str]] = {
    "begun": lambda row: row.begun_at[:19].replace("T", " "),
    "name": lambda row: row.name,
    "status": lambda row: row.status,
    "time": lambda row: row.took,
    "ranks": lambda row: str(row.ranks),
    "share": lambda row: f"{row.share:.0%}",
    "cost": lambda row: _money(row.cost),
    "metrics": lambda row: ", ".join(f"{name} {value:g}" for name, value in row.metrics.items()),
    "commit": lambda row: row.commit,
}
"""Columns of a table: title, and the cell's text."""


class StallRow(Stall, frozen=True, kw_only=True):
    """A stall of a run, with its cost."""

    run: str
    cost: float | None


class Totals(Struct, frozen=True, kw_only=True):
    """All rows of a ledger, as printed by ``--json``; a phase inside a run is in both costs."""

    schema_version: int = 1
    phases: tuple[Row, ...] = ()
    runs: tuple[Row, ...] = ()
    stalls: tuple[StallRow, ...] = ()
    phases_cost: float | None = None
    runs_cost: float | None = None
    unreadable: int = 0


def sum_up(history: History, prices: Prices) -> Totals:
    """Compute totals and costs of a ledger."""

    def summed(rows: list[Row]) -> tuple[tuple[Row, ...], float | None]:
        total = sum(row.rank_hours for row in rows)
        costs = [row.cost for row in rows if row.cost is not None]
        shared = (replace(row, share=row.rank_hours / total if total else 0.0) for row in rows)
        return tuple(shared), sum(costs) if costs else None

    phases, phases_cost = summed([_of_phase(phase, prices) for phase in history.phases])
    runs, runs_cost = summed([_of_run(run, prices) for run in history.runs])
    stalls = []
    for run in history.runs:
        for stall in run.stalls:
            cost = prices.cost(run.gpus, 1, stall.rank_hours * SECONDS_PER_HOUR)
            stalls.append(StallRow(**asdict(stall), run=run.run_id, cost=cost))
    return Totals(
        phases=phases,
        runs=runs,
        stalls=tuple(stalls),
        phases_cost=phases_cost,
        runs_cost=runs_cost,
        unreadable=history.unreadable,
    )


def _of_phase(phase: PastPhase, prices: Prices) -> Row:
    place, seconds = phase.place, phase.duration_s or 0.0
    unended = phase.status in ("interrupted", "unknown") and phase.duration_s is not None
    reused = "once" if phase.reused == 1 else f"{phase.reused} times"
    notes = [
        "lasted at least this long" if unended else "",
        phase.error,
        phase.discarded or phase.stale,
        f"reused {reused}" if phase.reused else "",
    ]
    reasons = []  # from the phase's own process, rank 0, which stands for all ranks
    if phase.status in ("done", "failed") and seconds >= WORTH_A_REASON_S:
        cores = phase.cpu_s / seconds
        reasons = [f"offloaded: {what}" for what in phase.offloaded]
        if cores >= 0.8:
            reasons.append(f"on the CPU: {cores:.1f} cores busy")
        elif cores < 0.2:  # it waits, for a GPU or for something else
            reasons.append(f"waiting: {cores:.0%} of one core busy")
    return Row(
        what="phase",
        name=phase.name,
        begun_at=phase.begun_at,
        status="discarded" if phase.discarded else "stale" if phase.stale else phase.status,
        duration_s=phase.duration_s,
        ranks=place.ranks,
        rank_hours=place.ranks * seconds / SECONDS_PER_HOUR,
        cost=None if phase.duration_s is None else prices.cost(place.gpus, place.ranks, seconds),
        metrics=phase.metrics,
        gpus=place.gpus,
        commit=f"{place.commit[:10]}{'+' * place.commit.endswith('-dirty')}",
        reason="; ".join(reasons),
        note="; ".join(filter(None, notes)),
    )


def _of_run(run: Run, prices: Prices) -> Row:
    stalled_s = sum(stall.seconds for stall in run.stalls)
    all_s = sum(time.seconds for time in run.spent)
    largest_first = sorted(run.spent, key=lambda time: -time.seconds)
    spent = {str(time.phase): time.seconds / all_s for time in largest_first if time.seconds}
    reasons = []
    if run.duration_s and stalled_s / run.duration_s >= 0.1:
        causes = ", ".join(dict.fromkeys(stall.cause or "unknown" for stall in run.stalls))
        reasons.append(f"waiting: {seconds_in_words(stalled_s)} stalled ({causes})")
    if (loading := spent.get("dataloading", 0.0)) >= 0.3:  # enough to justify another worker
        reasons.append(f"loader-bound: {loading:.0%} of the time in dataloading")
    if run.duration_s >= WORTH_A_REASON_S:
        reasons += [f"offloaded: {what}" for what in run.offloaded]
    return Row(
        what="run",
        name=run.run_id,
        begun_at=run.started_at,
        status=run.verdict or "ended",
        duration_s=run.duration_s,
        ranks=run.ranks,
        rank_hours=run.ranks * run.duration_s / SECONDS_PER_HOUR,
        cost=prices.cost(run.gpus, run.ranks, run.duration_s),
        gpus=run.gpus,
        reason="; ".join(reasons),
        note=run.command,
        spent=spent,
        stalled_s=stalled_s,
    )


def render(totals: Totals, *, markdown: bool = False) -> str:
    """Write the newest rows of each table, or all rows in Markdown, ending in a newline."""
    parts: list[str] = ["# Experiment log", ""] if markdown else []

    def add(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        if not rows:
            return
        if markdown:
            lines = [[one_line(cell).replace("|", "\\|") for cell in row] for row in rows]
            table = [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines)]
            parts.extend([f"## {title}", "", *table, ""])
            return
        parts.append(title)
        if (older := len(rows) - MOST_ROWS) > 0:
            parts.append(f"  {older} older ones are left out: --csv, --json, --markdown have all")
        # names come first, cells that may be long last
        shown = [
            (*(fit(one_line(cell), 32) for cell in row), fit(one_line(last), 100))
            for *row, last in rows[-MOST_ROWS:]
        ]
        parts.extend([*aligned([head, *shown], indent="  ", width=None), ""])

    for kind, found, cost in (
        ("phases", totals.phases, totals.phases_cost),
        ("runs", totals.runs, totals.runs_cost),
    ):
        total = f", {cost:.2f} in all" if cost is not None else ""
        cells = [(*(words(row) for words in COLUMNS.values()), row.note) for row in found]
        add(f"{kind}{total}", (*COLUMNS, ""), cells)
    stalls = [
        (
            row.run,
            row.verdict,
            row.cause or "unknown",
            seconds_in_words(row.seconds),
            seconds_in_words(row.rank_hours * SECONDS_PER_HOUR),
            _money(row.cost),
            row.summary if row.explained else "the cause is unknown",
        )
        for row in totals.stalls
    ]
    add("stalls", ("run", "verdict", "cause", "time", "of all ranks", "cost", ""), stalls)
    dearest_first = sorted((*totals.phases, *totals.runs), key=lambda row: -row.rank_hours)
    slow = [(row.name, row.took, row.reason) for row in dearest_first if row.reason]
    add("slowest, with what was seen", ("name", "time", "seen"), slow[:5])
    if totals.unreadable:
        lines = several(totals.unreadable, "line")
        why = "torn by a kill, or of another version"
        parts.append(f"{lines} of the ledger could not be read: {why}")
    return "\n".join(parts).rstrip() + "\n" if parts else "nothing is in the ledger yet\n"


def _money(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:.2f}"


def render_csv(totals: Totals) -> str:
    """Write one line per phase and run; numbers are unformatted, unknown values empty."""

    def cell(value: object) -> object:
        if isinstance(value, dict):
            value = " ".join(f"{name}={number!r}" for name, number in value.items())
        if isinstance(value, tuple):
            value = "; ".join(map(str, value))
        return one_line(value) if isinstance(value, str) else value

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in (*totals.phases, *totals.runs):
        writer.writerow([cell(getattr(row, column)) for column in CSV_COLUMNS])
    return text.getvalue()


def draw(totals: Totals) -> bytes:
    """Draw the newest 40 phases and runs as a PNG, oldest on top.

    Raises:
        BadUsage: matplotlib is not installed, or nothing has a duration.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadUsage(
            f"a chart needs matplotlib ({error})", "pip install 'lightning-hangcheck[plots]'"
        ) from error
    rows = [row for row in (*totals.phases, *totals.runs) if row.duration_s][-40:]
    if not rows:
        raise BadUsage("there is nothing to draw in the ledger yet", "leave out --chart")
    figure = Figure(figsize=(11.0, 1.9 + 0.4 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    hours = [(row.duration_s or 0.0) / SECONDS_PER_HOUR for row in rows]
    bars = axes.barh(range(len(rows)), hours, color="#8899aa")
    labels = []
    for row in rows:
        cost = "" if row.cost is None else f", {row.cost:.2f}"
        stalled = f", {seconds_in_words(row.stalled_s)} stalled" if row.stalled_s else ""
        ranks = f" x {row.ranks}" if row.ranks > 1 else ""
        labels.append(f"{row.took}{ranks}{cost}{stalled}, {row.status}".replace("$", r"\$"))
    axes.bar_label(bars, labels, padding=4, fontsize=8)
    names = [f"{row.what} {fit(one_line(row.name), 40)}".replace("$", r"\$") for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.5 * max(hours))  # room for the labels
    axes.set_xlabel("hours")
    axes.set_title("hangcheck ledger", loc="left")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()


def render_side_by_side(totals: Totals, names: Sequence[str]) -> str:
    """Write the newest run or phase of each name, or run with it in its command, in columns.

    Raises:
        BadUsage: A name has no match.
    """
    every = (*totals.phases, *totals.runs)
    rows = []
    for name in names:
        matching = [row for row in every if row.name == name]
        matching = matching or [row for row in totals.runs if name in row.note]
        if not matching:
            known = ", ".join(dict.fromkeys(row.name for row in reversed(every))) or "nothing yet"
            remedy = f"it has {fit(one_line(known), 200)}"
            raise BadUsage(f"the ledger has no run or phase {name}", remedy)
        rows.append(matching[-1])
    lines: dict[str, Callable[[Row], str]] = {
        **COLUMNS,
        "stalled": lambda row: seconds_in_words(row.stalled_s) if row.stalled_s else "",
        "spent": lambda row: ", ".join(f"{phase} {part:.0%}" for phase, part in row.spent.items()),
        "GPUs": lambda row: ", ".join(dict.fromkeys(row.gpus)),
        "seen": lambda row: row.reason,
        "": lambda row: row.note,
    }
    cells = [(title, *(fit(one_line(of(row)), 60) for row in rows)) for title, of in lines.items()]
    shown = [(title, *texts) for title, *texts in cells if any(texts)]
    return "\n".join(aligned(shown, indent="  ", width=None)) + "\n"
