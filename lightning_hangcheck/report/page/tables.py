"""Tables of the page: who the ranks are, their last collectives, what differs, and their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from lightning_hangcheck.report.page.history import UNNAMED, group_title
from lightning_hangcheck.report.start_report import NOT_SET, OWN, by_value
from lightning_hangcheck.report.stragglers import find_stragglers, trend_words
from lightning_hangcheck.report.verdict_text import name_ranks
from lightning_hangcheck.text.shown import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.beat import StepTimes
    from lightning_hangcheck.model.flight import CollectiveRecord
    from lightning_hangcheck.report.page.page_facts import PageFacts

MOST_NUMBERS = 10
MOST_GROUPS = 12
MOST_ROWS = 24
MOST_VALUES = 6
LONGEST_VALUE = 200
MOST_TIMED = 16
Entered = Literal["ended", "open", "apart", "missing", "unkept"]
WORDS: dict[Entered, str] = {
    "ended": "entered and ended",
    "open": "entered, not ended",
    "apart": "entered another operation than others",
    "missing": "not entered",
    "unkept": "entered, no longer in the record",
}


class Identity(NamedTuple):
    """A rank's process; what is not known of it is empty."""

    rank: int
    host: str
    pid: int | None
    started_at: str
    state: str
    phase: str
    step: int | None
    checkpoint: str
    sections: tuple[str, ...]
    command: str


def identities(facts: PageFacts) -> dict[int, Identity]:
    """Return who each rank is that the page tells of by itself."""
    states = {state.rank: state for state in facts.verdict.ranks}
    found = {}
    for rank in facts.shown:
        state, view, start = states.get(rank), facts.views.get(rank), facts.starts.get(rank, {})
        mark = state.last_checkpoint if state is not None else None
        found[rank] = Identity(
            rank=rank,
            host=(state.host if state is not None else "") or (view.host if view else ""),
            pid=state.pid if state is not None else None,
            started_at=str(start.get("at", "")),
            state=state.state if state is not None else "",
            phase=(state.phase or "") if state is not None else "",
            step=state.step if state is not None else None,
            checkpoint=f"{mark.number} {mark.name}" if mark is not None else "",
            sections=state.open_sections if state is not None else (),
            command=str(start.get("command") or facts.verdict.command),
        )
    return found


class GridCell(NamedTuple):
    """One collective of one row."""

    entered: Entered
    operation: str


class GridRow(NamedTuple):
    """Ranks with the same last collectives."""

    who: str
    has_culprit: bool
    cells: tuple[GridCell, ...]


class CollectiveGrid(NamedTuple):
    """One process group: a column a number of the sequence."""

    group: str
    numbers: range
    rows: list[GridRow]
    rows_left_out: int


def collective_grids(facts: PageFacts) -> list[CollectiveGrid]:
    """Lay out the groups of which the flight records tell, those first where ranks part."""
    groups: dict[str, dict[int, CollectiveRecord]] = {}
    for rank, view in facts.views.items():
        for record in view.flight.groups if view.flight is not None else ():
            if rank in record.ranks or not record.ranks:  # others know of the group, too
                groups.setdefault(record.group, {})[rank] = record
    culprits = frozenset(facts.verdict.culprits)
    grids = [_grid(name, records, culprits) for name, records in groups.items()]

    def alike(grid: CollectiveGrid) -> bool:
        entered = {cell.entered for row in grid.rows for cell in row.cells}
        return entered.isdisjoint(("missing", "apart"))

    return sorted((grid for grid in grids if grid.numbers), key=alike)[:MOST_GROUPS]


def _grid(
    name: str, records: Mapping[int, CollectiveRecord], culprits: frozenset[int]
) -> CollectiveGrid:
    last = max(_newest(record) for record in records.values())
    numbers = range(max(1, last - MOST_NUMBERS + 1), last + 1)
    cells = {rank: _cells(record, numbers) for rank, record in records.items()}
    columns = zip(*cells.values(), strict=True)
    apart = [len({cell.operation for cell in column if cell.operation}) > 1 for column in columns]
    rows: dict[tuple[GridCell, ...], list[int]] = {}
    for rank, row in cells.items():
        marked = tuple(
            cell._replace(entered="apart") if differs and cell.operation else cell
            for cell, differs in zip(row, apart, strict=True)
        )
        rows.setdefault(marked, []).append(rank)
    ordered = sorted(rows.items(), key=lambda row: (culprits.isdisjoint(row[1]), row[1]))
    told = (one.description for one in records.values())
    titled = next((text for text in told if text not in ("", UNNAMED)), "")
    return CollectiveGrid(
        group=group_title(name, titled),
        numbers=numbers,
        rows=[
            GridRow(name_ranks(ranks), not culprits.isdisjoint(ranks), row)
            for row, ranks in ordered[:MOST_ROWS]
        ],
        rows_left_out=max(0, len(ordered) - MOST_ROWS),
    )


def _newest(record: CollectiveRecord) -> int:
    return max([record.last_enqueued, *(entry.seq for entry in record.entries)])


def _cells(record: CollectiveRecord, numbers: Sequence[int]) -> list[GridCell]:
    entries = {entry.seq: entry for entry in record.entries}
    newest = _newest(record)
    cells = []
    for number in numbers:
        entry = entries.get(number)
        if entry is not None:
            cells.append(GridCell("ended" if record.has_ended(entry) else "open", entry.op))
        else:
            cells.append(GridCell("unkept" if number <= newest else "missing", ""))
    return cells


def differences(facts: PageFacts) -> list[tuple[str, list[tuple[str, str]]]]:
    """Compare all ranks that run.json has, and what the shown ones' journals tell of their start.

    Returns:
        Names of what differs, each with its values and who has which, that of most ranks first.
    """
    ranks = facts.record.ranks if facts.record is not None else ()
    told = {"host": {one.rank: one.host for one in ranks}}
    for name in sorted({name for one in ranks for name in one.environment} - OWN):
        told[name] = {one.rank: one.environment.get(name, NOT_SET) for one in ranks}
    for name in ("command", "folder", "launcher"):
        told[name] = {rank: str(start.get(name, "")) for rank, start in facts.starts.items()}
    versions = {
        rank: found if isinstance(found := start.get("versions"), dict) else {}
        for rank, start in facts.starts.items()
    }
    for name in sorted({str(name) for found in versions.values() for name in found}):
        by_rank = {rank: str(found.get(name, "")) for rank, found in versions.items()}
        told[f"version of {name}"] = by_rank
    shown = []
    for name, values in told.items():
        spread = by_value(values, MOST_VALUES, LONGEST_VALUE)
        if len(spread) > 1:
            shown.append((name, [(value, name_ranks(who)) for value, who in spread]))
    # times in logs of these nodes do not compare with the first one's
    clocks = [
        (f"{one.ahead_s:+.2f} s, within {one.within_s:.2f} s", f"node {one.node}")
        for one in (facts.record.clocks if facts.record is not None else ())
        if one.differs
    ]
    return [*shown, *([("clock, ahead of node 0's", clocks)] if clocks else [])]


class StepTable(NamedTuple):
    """The slowest ranks' mean steps as text, the median last.

    Attributes:
        rows: Whether it has more work of its own than the others, and its cells: the rank, steps
            timed, step, loader, forward, rest, times the median, trend.
        left_out: How many ranks are not shown.
    """

    rows: list[tuple[bool, tuple[str, ...]]]
    left_out: int


def step_table(facts: PageFacts) -> StepTable | None:
    """Lay out the slowest ranks and the median one; None where no rank has timed its steps."""
    found = find_stragglers(facts.case)
    if found is None:
        return None

    def cells(mean: StepTimes) -> tuple[str, ...]:
        return tuple(map(seconds_in_words, (mean.seconds, *mean.parts)))

    rows = []
    for number, one in enumerate(found.ranks[:MOST_TIMED]):
        trend = trend_words(one.trend) if one.trend is not None else ""
        row = (str(one.rank), str(one.steps), *cells(one.mean), f"{one.ratio:.1f}", trend)
        rows.append((found.stands_out and number == 0, row))
    if len(found.ranks) > 1:
        rows.append((False, ("median", "", *cells(found.typical), "", "")))
    return StepTable(rows, max(0, len(found.ranks) - MOST_TIMED))
