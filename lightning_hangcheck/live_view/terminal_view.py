"""Draws a run again and again on a terminal; where there is none, a block for each change."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from lightning_hangcheck.live_view.view_text import change_key, painted, verdict_key, view_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from types import FrameType

    from rich.console import Console

    from lightning_hangcheck.live_view.view_text import RunNow

EVERY_S = 0.5
SHARE = 0.03
"""Of a core that the view may take: where a reading costs more, the next one comes later."""
LONGEST_WAIT_S = 5.0
BETWEEN_BLOCKS_S = 5.0
"""Without a terminal: a start passes twelve checkpoints in seconds. A new verdict does not wait."""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def show_run(read: Callable[[], RunNow], stream: TextIO) -> None:
    """Show a run until it is over; Ctrl-C ends the view and leaves the run alone.

    Args:
        read: Reads the run as it is now.
        stream: Where to; drawn anew where it is a terminal, else a block for each change.

    Raises:
        UnreadableRun: As `read` at its first call.
    """
    first = read()
    console = _terminal(stream)
    try:
        with _tidy_end():
            if console is None:
                _print_changes(first, read, stream)
                return
            last = first if first.over else _drawn(first, read, console)
            # what was drawn goes with the screen; this stays
            console.print(painted(view_lines(last, console.width)), soft_wrap=True)
    except KeyboardInterrupt:
        return


def _terminal(stream: TextIO) -> Console | None:
    """The terminal; None where there is none on which something can be drawn anew."""
    if not stream.isatty():
        return None
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    return None if console.is_dumb_terminal else console


@contextmanager
def _tidy_end() -> Iterator[None]:
    """End on a signal as on Ctrl-C, so that the terminal is left as it was."""

    def end(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drawn(first: RunNow, read: Callable[[], RunNow], console: Console) -> RunNow:
    from rich.live import Live

    now = first
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for now in _readings(first, read):
            width, height = console.size
            live.update(painted(view_lines(now, width, height)), refresh=True)
    return now


def _print_changes(first: RunNow, read: Callable[[], RunNow], stream: TextIO) -> None:
    """A block at once for a new verdict and the end, after a moment for any other change."""
    shown: Hashable = None
    judged: Hashable = None
    printed_at: float | None = None
    for now in _readings(first, read):
        news, moment = change_key(now), time.monotonic()
        pressing = bool(now.over) or verdict_key(now) != judged
        if printed_at is None or pressing or moment - printed_at >= BETWEEN_BLOCKS_S:
            if news == shown:
                continue
            lines = view_lines(now)
            stream.write(
                "\n" * (printed_at is not None) + "".join(f"{line.text}\n" for line in lines)
            )
            stream.flush()
            shown, judged, printed_at = news, verdict_key(now), moment


def _readings(first: RunNow, read: Callable[[], RunNow]) -> Iterator[RunNow]:
    """The run again and again, the last time when it is over; twice a second if it costs little."""
    now = first
    cost_s = time.process_time()
    while True:
        yield now
        if now.over:
            return
        time.sleep(wait_after(time.process_time() - cost_s))
        cost_s = time.process_time()
        now = read()


def wait_after(spent_s: float) -> float:
    """Return the seconds to wait after a reading that took so much processor time."""
    return min(LONGEST_WAIT_S, max(EVERY_S, spent_s / SHARE))
