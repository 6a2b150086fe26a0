"""What is shown of a run in a browser, made anew whenever its folder has something new."""

from __future__ import annotations

import hashlib
import time
from html import escape
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.report.page.forms import NO_PRICE, write_as
from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.page.rendering import render_follower
from lightning_hangcheck.report.saved_run import SavedRun, read_saved_run
from lightning_hangcheck.text.moments import EPOCH, NANOSECONDS, read_utc
from lightning_hangcheck.text.plain_text import visible
from lightning_hangcheck.time_limit import PART_LIMIT_S, NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning_hangcheck.ledger.spending import Prices
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.report.page.forms import Form
    from lightning_hangcheck.rundir.layout import RunFolder

HTML = "text/html; charset=utf-8"
JSON = "application/json"
LIVE_S = 5.0
"""So long what is told of ranks that run is fresh enough."""
MARGIN = 0.25
"""Of the stall, before it and behind it, where a trace is opened at it."""


class Served(NamedTuple):
    """What answers one address."""

    content_type: str
    data: bytes


class RunPages:
    """The addresses of one run; what was made of it is kept until its folder changes."""

    def __init__(
        self,
        folder: RunFolder,
        run_folder: str,
        unjudged: Callable[[SavedRun], str],
        prices: Prices = NO_PRICE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show a run.

        Args:
            folder: Of the run.
            run_folder: As the reader should type it.
            unjudged: Says how far a run is that has no verdict yet.
            prices: Of an hour.
            clock: Tells seconds.
        """
        self._folder = folder
        self._run_folder = run_folder
        self._unjudged = unjudged
        self._prices = prices
        self._clock = clock
        self._lock = Lock()
        self._mark = ""
        self._saved: SavedRun | None = None
        self._kept: dict[str, Served | None] = {}

    def answer(self, name: str) -> Served | None:
        """Return what answers a name; None where there is nothing.

        Args:
            name: Behind the last slash of an address.
        """
        makers = {
            "": self._follower,
            "state": self._state,
            "report.html": self._page,
            "trace.json": self._trace,
        }
        if name not in makers:
            return None
        with self._lock:
            mark = mark_of(self._folder, self._clock())
            if mark != self._mark:
                self._mark, self._saved, self._kept = mark, None, {}
            if name not in self._kept:
                self._kept[name] = makers[name]()
            return self._kept[name]

    def _follower(self) -> Served:
        return Served(HTML, render_follower(self._folder.run_id).encode())

    def _state(self) -> Served:
        verdict = self._read().verdict
        told = {"mark": self._mark, "around": around_the_stall(verdict) if verdict else ""}
        return Served(JSON, msgspec.json.encode(told))

    def _page(self) -> Served:
        saved = self._read()
        if saved.verdict is not None:
            return Served(HTML, self._written("page", saved.verdict).encode())
        text = "\n".join(map(visible, self._unjudged(saved).split("\n")))
        return Served(HTML, f"<!DOCTYPE html><pre>{escape(text)}</pre>\n".encode())

    def _trace(self) -> Served | None:
        verdict = self._read().verdict
        if verdict is None:
            return None
        return Served(JSON, self._written("perfetto", verdict).encode())

    def _written(self, form: Form, verdict: Verdict) -> str:
        saved = self._read()
        return write_as(
            form,
            self._folder,
            verdict,
            saved.case,
            run_folder=self._run_folder,
            prices=self._prices,
            gaps=saved.gaps,
        )

    def _read(self) -> SavedRun:
        """A run that cannot be read now may be read later: its page says why."""
        if self._saved is None:
            try:
                self._saved = read_saved_run(self._folder)
            except UnreadableRun as error:
                self._saved = SavedRun(refused=str(error))
        return self._saved


def mark_of(folder: RunFolder, now_s: float) -> str:
    """Return a text that is another one when there is something new to show.

    Until there is a verdict that is also what its ranks tell while they run: it is asked for every
    few seconds.

    Args:
        folder: Of the run.
        now_s: Seconds of any clock that only goes on.
    """
    try:
        stamps = within(PART_LIMIT_S, lambda: sorted(_stamps(folder, now_s)))
    except (OSError, NoAnswer):
        return "no answer"
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


def _stamps(folder: RunFolder, now_s: float) -> Iterator[tuple[str, int, int]]:
    if not folder.verdict_file.exists():
        yield "live", int(now_s // LIVE_S), 0
    for path in (folder.run_file, folder.verdict_file, *folder.path.glob("verdicts/*.json")):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        yield path.name, found.st_mtime_ns, found.st_size


def around_the_stall(verdict: Verdict) -> str:
    """Return the part of an address that opens a trace at the stall; empty where there is none.

    Nanoseconds, as text: a browser's numbers are too short for them.
    """
    if not is_moment(verdict.stalled_since) or not is_moment(verdict.detected_at):
        return ""
    moments = (read_utc(str(verdict.stalled_since)), read_utc(verdict.detected_at))
    began, ended = (int((moment - EPOCH).total_seconds() * NANOSECONDS) for moment in moments)
    margin = int((ended - began) * MARGIN)
    return f"?visStart={began - margin}&visEnd={ended + margin}" if margin > 0 else ""
