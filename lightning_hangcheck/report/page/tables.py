"""Tables of the page: the last collectives, what differs between ranks, and their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.report.page.history import UNNAMED, group_title, views_of
from lightning_hangcheck.report.stragglers import find_stragglers, trend_words
from lightning_hangcheck.report.verdict_text import name_ranks
from lightning_hangcheck.text.shown import seconds_in_words, told_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.beat import StepTimes
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


OWN = frozenset(
    (
        "GROUP_RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "RANK",
        "ROLE_RANK",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_PROCID",
        "SLURM_TASK_PID",
        "SLURMD_NODENAME",
        "SLURM_TOPOLOGY_ADDR",
        "TORCHELASTIC_ERROR_FILE",
    )
)
"""Variables that launchers (torchrun, srun) give each rank a value of its own for."""
MOST_VALUES = 6
LONGEST_VALUE = 200
NOT_SET = "(not set)"


class Difference(Struct, frozen=True):
    """Something of which ranks have different values: each with who has it, most ranks first."""

    name: str
    values: tuple[tuple[str, str], ...]


def differences(facts: PageFacts) -> tuple[Difference, ...]:
    """Compare all ranks that run.json has, and the versions that the shown ones' journals tell."""
    ranks = facts.record.ranks if facts.record is not None else ()
    compared: list[tuple[str, Mapping[int, str]]] = [("host", {r.rank: r.host for r in ranks})]
    names = sorted({name for one in ranks for name in one.environment} - OWN)
    compared += [
        (name, {one.rank: one.environment.get(name, NOT_SET) for one in ranks}) for name in names
    ]
    compared += _told_at_start(facts)
    found = tuple(
        Difference(name, tuple(_by_value(told)))
        for name, told in compared
        if len(set(told.values())) > 1
    )
    return (*found, *_clocks(facts))


def _clocks(facts: PageFacts) -> Iterator[Difference]:
    """Times in logs of these nodes do not compare with the first one's."""
    clocks = facts.record.clocks if facts.record is not None else ()
    apart = tuple(
        (f"{one.ahead_s:+.2f} s, within {one.within_s:.2f} s", f"node {one.node}")
        for one in clocks
        if one.differs
    )
    if apart:
        yield Difference("clock, ahead of node 0's", apart)


def _told_at_start(facts: PageFacts) -> Iterator[tuple[str, Mapping[int, str]]]:
    starts = {
        rank: entry
        for rank, entries in facts.journals.items()
        for entry in entries
        if entry.get("kind") == "start"
    }
    for name in ("command", "folder", "launcher"):
        yield name, {rank: str(entry.get(name, "")) for rank, entry in starts.items()}
    versions = {rank: _table(entry.get("versions")) for rank, entry in starts.items()}
    for name in sorted({name for told in versions.values() for name in told}):
        yield f"version of {name}", {rank: told.get(name, "") for rank, told in versions.items()}


def _table(found: object) -> dict[str, str]:
    """A journal may hold anything."""
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _by_value(told: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    who: dict[str, list[int]] = {}
    for rank, value in told.items():
        who.setdefault(value, []).append(rank)
    ordered = sorted(who.items(), key=lambda item: -len(item[1]))
    values = told_apart([value for value, _ in ordered[:MOST_VALUES]], LONGEST_VALUE)
    for value, (_, ranks) in zip(values, ordered, strict=False):
        yield value, name_ranks(ranks)
    if len(ordered) > MOST_VALUES:
        yield f"{len(ordered) - MOST_VALUES} more values", name_ranks(_rest(ordered[MOST_VALUES:]))


def _rest(items: Iterable[tuple[str, list[int]]]) -> list[int]:
    return [rank for _, ranks in items for rank in ranks]


MOST_TIMED = 16


class StepRow(Struct, frozen=True, kw_only=True):
    """A rank's mean step, as text.

    Attributes:
        rank: None of the row of the median rank.
        stands_out: It has more work of its own than the others.
    """

    rank: int | None
    steps: str
    step: str
    loader: str
    forward: str
    rest: str
    ratio: str
    trend: str
    stands_out: bool


class StepTable(Struct, frozen=True):
    """The rows that are shown, and how many ranks are not."""

    rows: tuple[StepRow, ...]
    left_out: int


def step_table(facts: PageFacts) -> StepTable | None:
    """Lay out the slowest ranks and the median one; None where no rank has timed its steps."""
    found = find_stragglers(facts.case)
    if found is None:
        return None
    rows = [
        _row(
            one.mean,
            rank=one.rank,
            steps=str(one.steps),
            ratio=f"{one.ratio:.1f}",
            trend=trend_words(one.trend) if one.trend is not None else "",
            stands_out=found.stands_out and one is found.ranks[0],
        )
        for one in found.ranks[:MOST_TIMED]
    ]
    if len(found.ranks) > 1:
        rows.append(_row(found.typical))
    return StepTable(tuple(rows), max(0, len(found.ranks) - MOST_TIMED))


def _row(
    mean: StepTimes,
    *,
    rank: int | None = None,
    steps: str = "",
    ratio: str = "",
    trend: str = "",
    stands_out: bool = False,
) -> StepRow:
    return StepRow(
        rank=rank,
        steps=steps,
        step=seconds_in_words(mean.seconds),
        loader=seconds_in_words(mean.loader_s),
        forward=seconds_in_words(mean.forward_s),
        rest=seconds_in_words(mean.rest_s),
        ratio=ratio,
        trend=trend,
        stands_out=stands_out,
    )
