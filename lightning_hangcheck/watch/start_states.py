"""What the ranks of this node say of their state at the start, taken from their journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.report.start_report import render_start
from lightning_hangcheck.rundir import parse_journal
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND = b'"kind":"state"'
PATIENCE_NS = 10 * NANOSECONDS
"""Ranks leave their process group's making within a second of each other, unless one hangs."""


class _Said(msgspec.Struct, frozen=True):
    """A journal's line of this kind."""

    pid: int
    facts: dict[str, str]


class StartStates:
    """Compares what ranks say at their start, once for each set of processes."""

    def __init__(self) -> None:
        self._states: dict[int, dict[str, str]] = {}
        self._shown: set[int] = set()
        self._since_ns: int | None = None

    def take(self, lines: bytes) -> None:
        """Look through lines of a journal on their way to the disk, in whatever thread has them."""
        if KIND not in lines:
            return
        for entry in parse_journal(lines)[0]:
            if entry.get("kind") == "state":
                try:
                    said = msgspec.convert(entry, _Said)
                except msgspec.ValidationError:  # of another version of this package
                    continue
                self._states[said.pid] = said.facts

    def news(self, pids: Mapping[int, int], now_ns: int) -> str | None:
        """Return the report of ranks once all have spoken, or have had the time for it."""
        told = {rank: self._states[pid] for rank, pid in pids.items() if pid in self._states}
        if not told or not self._shown.isdisjoint(pids.values()):
            return None
        self._since_ns = self._since_ns or now_ns
        if len(told) < len(pids) and now_ns - self._since_ns < PATIENCE_NS:
            return None
        self._shown, self._since_ns = set(pids.values()), None
        return render_start(told, pids.keys() - told.keys())
