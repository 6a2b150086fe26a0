"""`hangcheck watch --tui`: choose a rank, see its stack, filter, pause. Needs the extra ``tui``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

from lightning_hangcheck.live_view.rank_stack import stack_lines
from lightning_hangcheck.live_view.rank_table import COLUMNS, Row, rows
from lightning_hangcheck.live_view.view_text import head_lines, painted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from textual.widget import Widget

    from lightning_hangcheck.live_view.view_text import RunNow

EVERY_S = 1.0
"""Drawing costs more here than in the plain view."""


class RunBrowser(App[None]):  # type: ignore[misc]  # textual may not be installed
    """The ranks of a run as a list to choose from.

    Args:
        first: The run as it was read first.
        read: Reads it as it is now.
    """

    CSS = "DataTable { height: 1fr; } #stack { height: 40%; border-top: solid gray; }"
    BINDINGS: ClassVar = [
        ("p", "pause", "Pause"),
        ("slash", "filter", "Filter"),
        ("escape", "unfilter", "All ranks"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, first: RunNow, read: Callable[[], RunNow]) -> None:
        super().__init__()
        self._now = first
        self._read = read
        self._shown: list[Row] = []
        self.paused = False

    def compose(self) -> Iterator[Widget]:
        """Head, table, filter, stack, keys."""
        yield Static(id="head", markup=False)
        yield DataTable(id="ranks", cursor_type="row")
        yield Input(id="filter", placeholder="show rows with this text; empty for all")
        yield VerticalScroll(Static(id="frames", markup=False), id="stack")
        yield Footer()

    def on_mount(self) -> None:
        """Fill it, and look again and again."""
        self.query_one(DataTable).add_columns(*(column.title for column in COLUMNS))
        self.query_one(DataTable).focus()
        self._show()
        self.set_interval(EVERY_S, self._look)

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Show the stack of the rank that was chosen."""
        self._show_stack()

    def on_input_changed(self, _: Input.Changed) -> None:
        """Show the rows that hold the text."""
        self._show()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Go back to the table."""
        self.query_one(DataTable).focus()

    def action_pause(self) -> None:
        """Keep what is shown, or go on."""
        self.paused = not self.paused
        self._show()

    def action_filter(self) -> None:
        """Go to the filter."""
        self.query_one(Input).focus()

    def action_unfilter(self) -> None:
        """Show all ranks."""
        self.query_one(Input).value = ""
        self.query_one(DataTable).focus()

    def _look(self) -> None:
        if not self.paused and not self._now.over:
            self.run_worker(self._read_beside, thread=True, exclusive=True)

    def _read_beside(self) -> None:
        """In a thread: a disk may take its time."""
        now = self._read()
        self.call_from_thread(self._take, now)

    def _take(self, now: RunNow) -> None:
        if not self.paused:
            self._now = now
            self._show()

    def _show(self) -> None:
        head = painted(head_lines(self._now, max(20, self.size.width - 1)))
        state = Text("\npaused: p goes on", style="bold yellow") if self.paused else Text("")
        self.query_one("#head", Static).update(head + state)
        wanted = self.query_one(Input).value.casefold()
        every = rows(self._now.ranks, self._now.at)
        self._shown = [row for row in every if wanted in " ".join(row.cells).casefold()]
        table = self.query_one(DataTable)
        chosen = table.cursor_row
        table.clear()
        for row in self._shown:
            table.add_row(*(Text(cell, style=row.style) for cell in row.cells))
        table.move_cursor(row=min(chosen, max(0, len(self._shown) - 1)))
        self._show_stack()

    def _show_stack(self) -> None:
        at = self.query_one(DataTable).cursor_row
        known = 0 <= at < len(self._shown)
        lines = stack_lines(self._now.verdict, self._shown[at].ranks[0].rank) if known else []
        self.query_one("#frames", Static).update(Text("\n".join(lines)))
