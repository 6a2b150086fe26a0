"""Renders the live view to fit a terminal, redrawn at intervals, or as one block per change.

The verdict is on top, then one row per rank or group of equal ranks, then gaps. All text from
outside is shown as single plain lines: escape sequences and markup in names have no effect.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TextIO

from lightning_hangcheck.live_view.run_follower import IN_FORCE, RankNow
from lightning_hangcheck.report.paragraphs import INDENT, WIDTH, aligned, fit, plain, wrapped
from lightning_hangcheck.report.verdict_text import name_ranks, number_ranks, render_line
from lightning_hangcheck.text.moments import read_utc
from lightning_hangcheck.text.shown import KIND_STYLES, bytes_in_words, seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from datetime import datetime

    from rich.text import Text

    from lightning_hangcheck.live_view.run_follower import RunNow

EVERY_S = 0.5
SHARE = 0.03
"""Maximum share of a core for the view: costly readings come less often."""
LONGEST_WAIT_S = 5.0
"""Also the minimum between blocks: a start passes twelve checkpoints within seconds."""


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        least: Width to which the column may be cut if a line is too long; 0 if it may not.
        right: Whether cells are aligned right, for numbers.
    """

    title: str
    least: int = 0
    right: bool = False


COLUMNS = (
    Column("RANK"),
    Column("STATE"),
    Column("PHASE", least=8),
    Column("WAITS FOR", least=16),
    Column("STEP", right=True),
    Column("PACE"),
    Column("OWN WORK", least=18),
    Column("REST", right=True),
    Column("CHECKPOINT", least=8),
    Column("AGE", right=True),
    Column("CPU", right=True),
    Column("GPU"),
    Column("MEMORY", right=True),
)
"""If the table is still too wide, the last ones are dropped."""


class Line(NamedTuple):
    """A line with a rich style; no meaning is carried by style alone."""

    text: str
    style: str = ""


class Row(NamedTuple):
    """A row of the table, before its columns are fitted."""

    ranks: tuple[RankNow, ...]
    cells: tuple[str, ...]
    style: str


def _cells(group: Sequence[RankNow], now: datetime) -> tuple[str, ...]:
    """Return the cells below `COLUMNS` for ranks in the same state."""
    first, uses = group[0], [row.use for row in group]
    # the longest silence; of running ranks the pace says enough
    silent = [row.silent_s for row in group if row.silent_s is not None and row.has_problem]
    state: str = "slowest" if first.slowest else first.state
    state += f" {seconds_in_short(max(silent))}" if silent else ""
    phases = [name for name, _ in Counter(row.phase for row in group if row.phase).most_common()]
    # pace of the slowest rank: its median step, and how many times longer the newest takes
    timed = [(row.step_s, row.use.step_now_s) for row in group]
    paced = [(now_s / usual_s, usual_s) for usual_s, now_s in timed if usual_s and now_s]
    longest = max((usual_s or now_s or 0.0 for usual_s, now_s in timed), default=0.0)
    pace = seconds_in_short(longest) if longest else ""
    if paced:
        times, usual_s = max(paced)
        pace = f"{seconds_in_short(usual_s)} x{times:.{1 if times < 9.95 else 0}f}"
    # most work of its own and least waiting in the group: the others wait for that rank
    steps = [use.a_step for use in uses if use.a_step is not None]
    own = seconds_in_short(max(step.own_s for step in steps)) if steps else ""
    rest = seconds_in_short(min(step.rest_s for step in steps)) if steps else ""
    own = f"{own} {first.slowest}".strip() if own else ""
    oldest = min(group, key=lambda row: (row.kept_at == "", row.kept_at))
    age = ""
    with suppress(ValueError):
        age = seconds_in_short(max(0.0, (now - read_utc(oldest.kept_at)).total_seconds()))
    gpu = [_span((use.gpu_percent for use in uses), "%"), _largest(use.gpu_bytes for use in uses)]
    return (
        number_ranks([row.rank for row in group]),
        state,
        ", ".join([*phases[:2], *(["..."] if len(phases) > 2 else [])]),
        first.waits_for,
        _span(row.step for row in group),
        pace,
        own,
        rest,
        oldest.kept,
        age,
        # from the smallest value: an idle rank among busy ones matters
        _span((use.cpu_percent for use in uses), "%"),
        " ".join(filter(None, gpu)),
        _largest(row.memory_bytes for row in group),
    )


def _span(numbers: Iterable[float | None], unit: str = "") -> str:
    known = [round(number) for number in numbers if number is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low}{unit}" if low == high else f"{low}-{high}{unit}"


def _largest(sizes: Iterable[int | None]) -> str:
    known = [size for size in sizes if size is not None]
    return bytes_in_words(max(known)) if known else ""


def _style(row: RankNow) -> str:
    if row.culprit:
        return "bold red"
    if not row.has_problem:
        running = "yellow" if row.slowest else ""
        return running if row.state == "runs" else "dim"
    return "red" if row.state in ("gone", "stuck", "stopped", "missing") else "yellow"


def rows(ranks: Sequence[RankNow], now: datetime) -> list[Row]:
    """Make the rows, problems first."""

    def alike(row: RankNow) -> Hashable:
        """Key of a group; steps and paces differ all the time and do not split a group."""
        starting = row.kept if row.step is None else ""
        place = row.phase if row.has_problem else ""
        return row.culprit, row.state, row.slowest, row.waits_for, starting, place

    groups: dict[Hashable, list[RankNow]] = {}
    for row in ranks:
        groups.setdefault(row.rank if len(ranks) <= 32 else alike(row), []).append(row)
    return [Row(tuple(some), _cells(some, now), _style(some[0])) for some in groups.values()]


def fitted(shown: Sequence[Row], width: int) -> list[str]:
    """Return the table's lines, at most ``width`` long: cut text first, then drop columns."""
    table = [tuple(column.title for column in COLUMNS), *(row.cells for row in shown)]
    kept = [at for at in range(len(COLUMNS)) if any(row.cells[at] for row in shown)]
    while True:
        columns = [COLUMNS[at] for at in kept]
        lines = aligned(
            [[line[at] for at in kept] for line in table],
            {at: column.least for at, column in enumerate(columns) if column.least},
            right={at for at, column in enumerate(columns) if column.right},
            indent="",
            width=width,
        )
        if max(map(len, lines)) <= width or len(kept) <= 1:
            return [line[:width] for line in lines]
        kept.pop()


def view_lines(now: RunNow, width: int = WIDTH, height: int | None = None) -> list[Line]:
    """Render the view for a terminal of this size; its last column stays empty."""
    room, verdict = max(20, width - 1), now.verdict

    def told(text: str, first: str, rest: str, most: int, style: str = "") -> list[Line]:
        return [Line(fit(line, room), style) for line in wrapped(text, first, rest, most, room)]

    top, status = [Line(now.no_verdict)], f"{now.at:%H:%M:%S}Z  {now.over or now.status}"
    if verdict is not None:
        kind = verdict.verdict.upper()
        text = render_line(verdict).removeprefix(kind).strip()
        top = told(text, f"{kind}  ", " " * (len(kind) + 2), 3, KIND_STYLES[kind])
        if verdict.verdict in IN_FORCE:
            ago = ""
            with suppress(ValueError):
                seconds = (now.at - read_utc(verdict.detected_at)).total_seconds()
                ago = f"{seconds_in_words(round(seconds))} ago" if seconds >= 1 else "just now"
            status += f", {verdict.verdict} reported {ago}"
    top += told(status, "", INDENT, 2)
    top += [Line(fit(plain(now.command), room), "dim"), Line("")]
    bottom = [
        line for gap in now.gaps[:2] for line in told(gap, "not seen: ", INDENT, 3, style="dim")
    ]
    if (more := len(now.gaps) - 2) > 0:
        bottom.append(Line(f"not seen: {more} more", "dim"))
    report = f"hangcheck report {plain(now.shown_folder)}"
    way_out = report if now.over else f"Ctrl-C ends this view, not the run; more: {report}"
    bottom.append(Line(fit(way_out, room), "dim"))

    free = 40 if height is None else max(3, height - len(top) - len(bottom) - 1)
    every = rows(now.ranks, now.at)
    if not every:
        return [*top, Line("no rank has come yet"), *bottom]
    shown = every if len(every) <= free - 1 else every[: max(1, free - 2)]
    titles, *lines = fitted(shown, room)
    table = [Line(titles, "bold"), *map(Line, lines, (row.style for row in shown))]
    if left := [rank.rank for row in every[len(shown) :] for rank in row.ranks]:
        hidden = f"... and {several(len(left), 'rank')} more: {name_ranks(left)}"
        table.append(Line(fit(hidden, room)))
    return [*top, *table, *bottom]


def painted(lines: Sequence[Line]) -> Text:
    """Apply the style of each line; markup in a line stays text."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for number, line in enumerate(lines):
        text.append("\n" * bool(number) + line.text, line.style or None)
    return text


def show_run(read: Callable[[], RunNow], stream: TextIO) -> None:
    """Show a run until it is over; Ctrl-C ends the view, not the run.

    Raises:
        UnreadableRun: As `read` at its first call.
    """
    first = now = read()
    # handle signals like Ctrl-C, to restore the terminal
    ending = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in ending}
    try:
        console = None
        if stream.isatty():
            from rich.console import Console

            console = Console(file=stream, highlight=False, markup=False, emoji=False)
        if console is None or console.is_dumb_terminal:  # it cannot be redrawn
            _print_changes(first, read, stream)
            return
        if not now.over:
            from rich.live import Live

            with Live(console=console, screen=True, auto_refresh=False) as live:
                for now in _readings(first, read):
                    live.update(painted(view_lines(now, *console.size)), refresh=True)
        # what was drawn disappears with the screen; print the final state
        console.print(painted(view_lines(now, console.width)), soft_wrap=True)
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_changes(first: RunNow, read: Callable[[], RunNow], stream: TextIO) -> None:
    """Print a block at once for a new verdict and the end; other changes wait up to 5 s."""
    shown: RunNow | None = None
    printed_at = 0.0
    for now in _readings(first, read):
        pressing = shown is None or bool(now.over) or now.verdict_key != shown.verdict_key
        waited = time.monotonic() - printed_at >= LONGEST_WAIT_S
        if (pressing or waited) and (shown is None or now.change_key != shown.change_key):
            text = "".join(f"{line.text}\n" for line in view_lines(now))
            stream.write(text if shown is None else f"\n{text}")
            stream.flush()
            shown, printed_at = now, time.monotonic()


def _readings(first: RunNow, read: Callable[[], RunNow]) -> Iterator[RunNow]:
    """Yield readings until the run is over, twice per second if they cost little."""
    now = first
    cost_s = time.process_time()
    while True:
        yield now
        if now.over:
            return
        # a reading above its share of a core is delayed, but made
        spent_s = time.process_time() - cost_s
        time.sleep(min(LONGEST_WAIT_S, max(EVERY_S, spent_s / SHARE)))
        cost_s = time.process_time()
        now = read()


def seconds_in_short(seconds: float) -> str:
    """Write a duration for a narrow column: ``41ms``, ``0.41s``, ``41s``, ``3m12``, ``6h02``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.2g}s"
    if seconds < 59.5:
        return f"{seconds:.0f}s"
    for unit, parts, longest in (("m", 60, 3600), ("h", 3600, 86_400)):
        if round(seconds) < longest:
            whole, left = divmod(round(seconds), parts)
            return f"{whole}{unit}{left * 60 // parts:02d}"
    days, left = divmod(round(seconds), 86_400)
    return f"{days}d{left // 3600:02d}"
