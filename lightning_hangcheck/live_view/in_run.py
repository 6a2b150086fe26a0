"""The view below a run's own output, as a program: `hangcheck run --live` starts it.

It is a process of its own, so that whatever goes wrong in it costs the run nothing; and one in a
session of its own, so that neither Ctrl-C nor Ctrl-Z reaches it. The launcher says on its standard
input whether to show or to hide itself, and waits a moment for its word that it is hidden. The end
of that input is the end of the launcher, however that came about: the terminal is left in order.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.live_view.run_follower import RunFollower
from lightning_hangcheck.live_view.terminal_view import EVERY_S, wait_after
from lightning_hangcheck.live_view.view_text import Line, RunNow, region_lines
from lightning_hangcheck.session.session import read_session
from lightning_hangcheck.text.status_region import (
    GIVEN_UP,
    Size,
    drawn,
    made,
    most_lines,
    taken_away,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

TERMINAL = 2
HIDE, SHOW = b"h", b"s"
HIDDEN = b"."
IN_COLOUR = "colour"


class Region:
    """The region as it stands on the terminal now.

    Args:
        colours: Whether styles are shown.
    """

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._size = Size(0, 0)
        self._height = 0

    def draw(self, now: RunNow) -> None:
        """Draw it, anew where the terminal has another size; it never gets smaller but by that.

        Raises:
            OSError: The terminal is gone.
        """
        size, before = Size(*os.get_terminal_size(TERMINAL)), ""
        if size != self._size:
            before = GIVEN_UP if self._height else ""  # its lines may be anywhere now
            self._size, self._height = size, 0
        lines = list(region_lines(now, size.columns, most_lines(size)))
        if not lines:
            _write(before)
            return
        if len(lines) > self._height:
            self._height = len(lines)
            before += made(size, self._height)
        lines += [Line("")] * (self._height - len(lines))
        _write(before + drawn(size, lines, colours=self._colours))

    def take_away(self) -> None:
        """Give its lines back.

        Raises:
            OSError: The terminal is gone.
        """
        if self._height:
            _write(taken_away(self._size, self._height))
        self._size, self._height = Size(0, 0), 0


class Reading:
    """The run as it was read last: by a thread, as storage may keep a reading waiting.

    Args:
        follower: Of the run.
    """

    def __init__(self, follower: RunFollower) -> None:
        self.newest: RunNow | None = None
        self._follower = follower
        threading.Thread(target=self._read, name="hangcheck-reader", daemon=True).start()

    def _read(self) -> None:
        while True:
            began_s = time.thread_time()
            try:
                self.newest = self._follower.read()
            except UnreadableRun:  # its folder is still being made
                pass
            except Exception as error:  # noqa: BLE001 - this thread's boundary: the run goes on
                log.once("live", f"--live: the run cannot be read any more: {error!r}")
                return
            time.sleep(wait_after(time.thread_time() - began_s))


def show(reading: Reading, region: Region) -> None:
    """Draw the run until the launcher is gone.

    Raises:
        OSError: The terminal is gone.
    """
    showing = False
    while True:
        ready, _, _ = select.select([0], [], [], EVERY_S)
        if ready:
            told = os.read(0, 64)
            if not told:
                return
            showing = told.endswith(SHOW)
            if not showing:
                region.take_away()
                os.write(1, HIDDEN)
        if showing and reading.newest is not None:
            region.draw(reading.newest)


def main(arguments: Sequence[str]) -> int:
    """Show one run. What goes wrong ends the view with one sentence, never the run."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher holds its signals back
    session_folder, shown_folder, colours = arguments
    region = Region(colours=colours == IN_COLOUR)
    try:
        session = read_session(Path(session_folder))
        reading = Reading(RunFollower(session.run_folder, shown_folder))
        try:
            show(reading, region)
        finally:
            region.take_away()
    except (UnreadableRun, OSError) as error:
        log.once("live", f"--live: the view ends, the run goes on: {error}")
        return 1
    return 0


def _write(text: str) -> None:
    """One write(2) for all of it: what ranks print at the same time comes before or after it."""
    if text:
        os.write(TERMINAL, text.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
