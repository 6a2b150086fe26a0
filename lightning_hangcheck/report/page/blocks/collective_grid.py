"""The last collectives of each group, rank by rank, with the hole where one was not entered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.report.page.blocks.identities import views_of
from lightning_hangcheck.report.page.rank_history import UNNAMED, group_title
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.flight import CollectiveRecord
    from lightning_hangcheck.report.page.page_facts import PageFacts

MOST_NUMBERS = 10
MOST_GROUPS = 12
MOST_ROWS = 24
Entered = Literal["ended", "open", "apart", "missing", "unkept"]
WORDS: dict[Entered, str] = {
    "ended": "entered and ended",
    "open": "entered, not ended",
    "apart": "entered another operation than others",
    "missing": "not entered",
    "unkept": "entered, no longer in the record",
}


class GridCell(Struct, frozen=True):
    """One collective of one row."""

    entered: Entered
    operation: str

    @property
    def words(self) -> str:
        """What the cell says, for those who do not see its colour."""
        return f"{self.operation} {WORDS[self.entered]}".strip()


class GridRow(Struct, frozen=True, kw_only=True):
    """Ranks with the same last collectives."""

    who: str
    has_culprit: bool
    cells: tuple[GridCell, ...]


class CollectiveGrid(Struct, frozen=True, kw_only=True):
    """One process group: a column a number of the sequence."""

    group: str
    numbers: tuple[int, ...]
    rows: tuple[GridRow, ...]
    rows_left_out: int = 0


def collective_grids(facts: PageFacts) -> tuple[CollectiveGrid, ...]:
    """Lay out the groups of which the flight records tell, those first where ranks part."""
    groups: dict[str, dict[int, CollectiveRecord]] = {}
    for rank, view in views_of(facts).items():
        for record in view.flight.groups if view.flight is not None else ():
            if rank in record.ranks or not record.ranks:  # others know of the group, too
                groups.setdefault(record.group, {})[rank] = record
    culprits = frozenset(facts.verdict.culprits)
    grids = [_grid(name, records, culprits) for name, records in groups.items()]
    return tuple(sorted(filter(None, grids), key=_alike)[:MOST_GROUPS])


def _alike(grid: CollectiveGrid | None) -> bool:
    rows = grid.rows if grid is not None else ()
    return not any(cell.entered in ("missing", "apart") for row in rows for cell in row.cells)


def _grid(
    name: str, records: Mapping[int, CollectiveRecord], culprits: frozenset[int]
) -> CollectiveGrid | None:
    last = max(record.last_enqueued for record in records.values())
    last = max([last, *(entry.seq for one in records.values() for entry in one.entries)])
    numbers = tuple(range(max(1, last - MOST_NUMBERS + 1), last + 1))
    if not numbers:
        return None
    rows: dict[tuple[GridCell, ...], list[int]] = {}
    for rank, cells in _told_apart({r: _cells(one, numbers) for r, one in records.items()}).items():
        rows.setdefault(cells, []).append(rank)
    ordered = sorted(rows.items(), key=lambda row: (culprits.isdisjoint(row[1]), row[1]))
    told = (one.description for one in records.values())
    titled = next((text for text in told if text not in ("", UNNAMED)), "")
    return CollectiveGrid(
        group=group_title(name, titled),
        numbers=numbers,
        rows=tuple(
            GridRow(who=name_ranks(ranks), has_culprit=not culprits.isdisjoint(ranks), cells=cells)
            for cells, ranks in ordered[:MOST_ROWS]
        ),
        rows_left_out=max(0, len(ordered) - MOST_ROWS),
    )


def _told_apart(cells: Mapping[int, tuple[GridCell, ...]]) -> dict[int, tuple[GridCell, ...]]:
    """Mark the numbers at which ranks entered operations of different names."""
    columns = zip(*cells.values(), strict=True)
    apart = [len({cell.operation for cell in column if cell.operation}) > 1 for column in columns]
    return {
        rank: tuple(
            GridCell("apart", cell.operation) if differs and cell.operation else cell
            for cell, differs in zip(row, apart, strict=True)
        )
        for rank, row in cells.items()
    }


def _cells(record: CollectiveRecord, numbers: Sequence[int]) -> tuple[GridCell, ...]:
    entries = {entry.seq: entry for entry in record.entries}
    newest = max([record.last_enqueued, *entries])
    cells = []
    for number in numbers:
        entry = entries.get(number)
        if entry is not None:
            cells.append(GridCell("ended" if record.has_ended(entry) else "open", entry.op))
        else:
            cells.append(GridCell("unkept" if number <= newest else "missing", ""))
    return tuple(cells)
