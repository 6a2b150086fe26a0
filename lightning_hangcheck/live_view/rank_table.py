"""Rows of the live table: a rank each, or a group of equals; as wide as the terminal. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.report.paragraphs import GAP, column_widths, fit, line_width, narrowed
from lightning_hangcheck.report.verdict_text.rank_rows import number_ranks
from lightning_hangcheck.text.amounts import bytes_in_words, seconds_in_short
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from datetime import datetime

    from lightning_hangcheck.live_view.rank_now import RankNow

MOST_SINGLE = 32
"""More ranks are shown as groups of equals."""
PHASES_SHOWN = 2


class Column(NamedTuple):
    """One column of the table.

    Attributes:
        least: Width to which it gives way where a line would not fit; 0 where it does not.
        worth: Of what still does not fit, the column of the least worth goes first.
        right: Numbers stand below each other by their ends.
    """

    title: str
    worth: int
    least: int = 0
    right: bool = False


COLUMNS = (
    Column("RANK", 99),
    Column("STATE", 99),
    Column("PHASE", 10, least=8),
    Column("WAITS FOR", 99, least=16),
    Column("STEP", 9, right=True),
    Column("PACE", 7),
    Column("OWN WORK", 8, least=18),
    Column("REST", 6, right=True),
    Column("CHECKPOINT", 5, least=8),
    Column("AGE", 4, right=True),
    Column("CPU", 3, right=True),
    Column("MEMORY", 1, right=True),
    Column("GPU", 2),
)


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        style: As rich names it; empty for a rank that runs.
    """

    ranks: tuple[RankNow, ...]
    cells: tuple[str, ...]
    style: str


def rows(ranks: Sequence[RankNow], now: datetime) -> list[Row]:
    """Make the rows, problems first.

    Args:
        ranks: In the order of the table; above 32 equals share a row.
        now: For the age of a checkpoint.
    """
    groups: dict[Hashable, list[RankNow]] = {}
    for one in ranks:
        groups.setdefault(one.rank if len(ranks) <= MOST_SINGLE else _alike(one), []).append(one)
    return [Row(tuple(group), _cells(group, now), _style(group[0])) for group in groups.values()]


def fitted(shown: Sequence[Row], width: int) -> list[str]:
    """Write a title line and a line for each row, none wider than the terminal.

    Columns that are empty in all rows vanish. Those of text are cut where a line would not fit, and
    what then still does not fit goes as a whole, the least needed first.

    Args:
        shown: The rows that have room.
        width: Columns of the terminal.
    """
    titles = tuple(column.title for column in COLUMNS)
    table = [titles, *(row.cells for row in shown)]
    kept = [at for at in range(len(COLUMNS)) if any(row.cells[at] for row in shown)]
    while True:
        cells = [[line[at] for at in kept] for line in table]
        least = {
            at: COLUMNS[column].least for at, column in enumerate(kept) if COLUMNS[column].least
        }
        widths = narrowed(column_widths(cells), least, width)
        if line_width(widths) <= width or len(kept) <= 1:
            break
        kept.remove(min(kept, key=lambda at: (COLUMNS[at].worth, at)))
    right = [COLUMNS[at].right for at in kept]
    return [_line(line, widths, right)[:width] for line in cells]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = (
        fit(cell, width).rjust(width) if by_end else fit(cell, width).ljust(width)
        for cell, width, by_end in zip(cells, widths, right, strict=True)
    )
    return GAP.join(placed).rstrip()


def _alike(one: RankNow) -> Hashable:
    """Steps, paces and phases of ranks that run differ all the time; that parts no group."""
    starting = one.kept if one.step is None else ""
    place = one.phase if one.has_problem else ""
    return one.culprit, one.standing, one.slowest is None, one.waits_for, starting, place


def _style(one: RankNow) -> str:
    if one.culprit:
        return "bold red"
    if not one.has_problem:
        running = "" if one.slowest is None else "yellow"
        return running if one.standing == "runs" else "dim"
    return "red" if one.standing in ("gone", "stuck", "stopped", "missing") else "yellow"


def _cells(group: Sequence[RankNow], now: datetime) -> tuple[str, ...]:
    oldest = min((one.kept_at for one in group if one.kept_at), default="")
    first = min(group, key=lambda one: (one.kept_at == "", one.kept_at))
    return (
        number_ranks([one.rank for one in group]),
        _state(group),
        _phases(group),
        group[0].waits_for,
        _span([one.step for one in group if one.step is not None]),
        _pace(group),
        _own_work(group),
        _rest(group),
        first.kept,
        _age(oldest, now),
        _share([one.use.cpu_percent for one in group]),
        _largest([one.memory_bytes for one in group]),
        _gpu(group),
    )


def _state(group: Sequence[RankNow]) -> str:
    """With the longest silence; of ranks that run it is told by their pace."""
    silent = [one.silent_s for one in group if one.silent_s is not None and one.has_problem]
    shown = f" {seconds_in_short(max(silent))}" if silent else ""
    standing = group[0].standing if group[0].slowest is None else "slowest"
    return f"{standing}{shown}"


def _phases(group: Sequence[RankNow]) -> str:
    """The most common first."""
    counted = Counter(one.phase for one in group if one.phase).most_common()
    names = [name for name, _ in counted[:PHASES_SHOWN]]
    return ", ".join(names) + (", ..." if len(counted) > PHASES_SHOWN else "")


def _pace(group: Sequence[RankNow]) -> str:
    """The slowest rank's: its own median, and how many times as long it takes now."""
    timed = [(one.step_s, one.use.step_now_s) for one in group]
    paced = [(now_s / usual_s, usual_s) for usual_s, now_s in timed if usual_s and now_s]
    if paced:
        times, usual_s = max(paced)
        factor = f"{times:.1f}" if times < 9.95 else f"{times:.0f}"
        return f"{seconds_in_short(usual_s)} x{factor}"
    known = [usual_s or now_s for usual_s, now_s in timed if usual_s or now_s]
    return seconds_in_short(max(one for one in known if one)) if known else ""


def _own_work(group: Sequence[RankNow]) -> str:
    """The most of the group; of the job's slowest rank how many times the median's, and in what."""
    timed = [one for one in group if one.use.a_step is not None]
    steps = [one.use.a_step for one in timed if one.use.a_step is not None]
    if not steps:
        return ""
    most = seconds_in_short(max(step.own_s for step in steps))
    told = next((one.slowest for one in timed if one.slowest is not None), None)
    return most if told is None else f"{most} x{told.ratio:.1f} {told.part}"


def _rest(group: Sequence[RankNow]) -> str:
    """The least: who waits less for the others is who they wait for."""
    steps = [one.use.a_step for one in group if one.use.a_step is not None]
    return seconds_in_short(min(step.rest_s for step in steps)) if steps else ""


def _age(at: str, now: datetime) -> str:
    try:
        return seconds_in_short(max(0.0, (now - read_utc(at)).total_seconds())) if at else ""
    except ValueError:
        return ""


def _span(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}-{high}"


def _share(shares: Iterable[float | None]) -> str:
    """The least of the group: a rank that does nothing among others that work is what matters."""
    known = [round(share) for share in shares if share is not None]
    return f"{_span(known)}%" if known else ""


def _largest(sizes: Iterable[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return bytes_in_words(max(known)) if known else ""


def _gpu(group: Sequence[RankNow]) -> str:
    busy = _share([one.use.gpu_percent for one in group])
    return " ".join(filter(None, (busy, _largest([one.use.gpu_bytes for one in group]))))
