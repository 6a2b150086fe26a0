"""A progress bar for a tracked loop, drawn only on a terminal and never at the loop's cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import clean_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.recorder.loops.tracking import Bar

PAUSE_S = 0.1
"""Least seconds between two drawings."""


class ProgressBar(Protocol):
    """What a loop tells its bar."""

    def advance(self, now_s: float) -> None:
        """One more item is done; draw if it is time."""

    def close(self) -> None:
        """The loop was left."""


class Drawn(Protocol):
    """What rich's and tqdm's bars are made to."""

    def show(self, done: int) -> None:
        """Draw it with so many items done."""

    def close(self) -> None:
        """Take it off the screen."""


class NoBar:
    """Draws nothing."""

    def advance(self, now_s: float) -> None:
        """Nothing to draw."""

    def close(self) -> None:
        """Nothing to end."""


class _Painted:
    """A bar of rich or tqdm. It is theirs to draw, so any failure of it only ends the drawing."""

    def __init__(self, bar: Drawn) -> None:
        self._bar = bar
        self._done = 0
        self._drawn_s = 0.0

    def advance(self, now_s: float) -> None:
        self._done += 1
        if now_s - self._drawn_s >= PAUSE_S:
            self._drawn_s = now_s
            self._draw()

    def close(self) -> None:
        self._draw()
        self._attempt(lambda: self._bar.close())

    def _draw(self) -> None:
        self._attempt(lambda: self._bar.show(self._done))

    def _attempt(self, drawing: Callable[[], None]) -> None:
        try:
            drawing()
        except Exception as error:  # noqa: BLE001 - a terminal that went away must not end the loop
            log.once("progress bar", f"the progress bar is off: {error!r}")
            self._bar = _NOTHING


class _Nothing:
    def show(self, done: int) -> None:
        """Draws nothing."""

    def close(self) -> None:
        """Ends nothing."""


_NOTHING = _Nothing()


class _Rich:
    """rich's bar, drawn by us: its own thread would run in every process forked from here."""

    def __init__(self, name: str, total: int | None) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        self._progress = Progress(
            console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._task = self._progress.add_task(escape(name), total=total)
        self._progress.start()

    def show(self, done: int) -> None:
        self._progress.update(self._task, completed=done)
        self._progress.refresh()

    def close(self) -> None:
        self._progress.stop()


class _Tqdm:
    def __init__(self, name: str, total: int | None) -> None:
        from tqdm import tqdm

        self._bar = tqdm(desc=name, total=total, file=sys.stderr, mininterval=0, leave=False)

    def show(self, done: int) -> None:
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def open_bar(kind: Bar, name: str, total: int | None) -> ProgressBar:
    """Open a bar, or one that draws nothing where there is no terminal or it cannot be drawn.

    Args:
        kind: Whose; ``off`` for none.
        name: Stands before it.
        total: None where it is not known.
    """
    if kind == "off" or not _is_terminal():
        return NoBar()
    shown = clean_name(name)
    try:
        return _Painted(_Tqdm(shown, total) if kind == "tqdm" else _Rich(shown, total))
    except Exception as error:  # noqa: BLE001 - another live display or a missing tqdm: no bar then
        log.once("progress bar", f"no progress bar: {error!r}")
        return NoBar()


def _is_terminal() -> bool:
    """Whether stderr is one; a program may have closed it or put its own object there."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
