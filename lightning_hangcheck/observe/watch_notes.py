"""What a sidecar tells a visitor: for how long each rank has been silent, and its newest verdict.

    <session>/watch.json   written once a second, in memory: no disk can delay it

Whoever visits a job that is watched (`hangcheck attach`) sees it for some seconds only, and the
kernel's record of who slept for how long starts anew at each look of the sidecar. The sidecar has
watched all the time; what it knows is the history that the visitor lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.files.atomic import write_atomically
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.watch.publishing import Publisher
    from lightning_hangcheck.watch.ranks.roster import Roster

EVERY_S = 1.0
"""A note of eight ranks costs the sidecar 0.1 ms; a visit lasts two seconds and more."""


class RankNote(Struct, frozen=True, kw_only=True):
    """One rank that is there, as the sidecar knows it; times as in `RankView`.

    Attributes:
        started_ticks: With the pid, names the process for ever.
    """

    rank: int
    pid: int
    started_ticks: int
    silent_for_s: float
    idle_for_s: float
    circling_for_s: float
    pace: Pace | None = None


class WatchNotes(Struct, frozen=True, kw_only=True):
    """watch.json.

    Attributes:
        written_ns: Monotonic time at which all of it held.
        newest: The newest verdict that was told, ``recovered`` too; None before the first.
        told_ns: When that was, monotonic.
    """

    schema_version: int = 1
    written_ns: int
    ranks: tuple[RankNote, ...] = ()
    newest: Verdict | None = None
    told_ns: int = 0


class NoteKeeper:
    """Keeps watch.json."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._written_ns = 0

    def update(self, roster: Roster, told: Publisher, now_ns: int) -> None:
        """Write down how things are, once a second; memory that is full costs no more than that."""
        if now_ns - self._written_ns < EVERY_S * NANOSECONDS:
            return
        self._written_ns = now_ns
        notes = WatchNotes(
            written_ns=now_ns,
            ranks=_notes(roster, now_ns),
            newest=told.newest,
            told_ns=told.told_ns,
        )
        try:
            write_atomically(self._session.watch_file, encode(notes))
        except OSError as error:
            log.once("notes", f"visitors of this job learn nothing from its sidecar ({error})")


def _notes(roster: Roster, now_ns: int) -> tuple[RankNote, ...]:
    return tuple(
        RankNote(
            rank=rank.found.rank,
            pid=rank.found.pid,
            started_ticks=rank.found.started_ticks,
            silent_for_s=rank.progress.silent_ns(now_ns) / NANOSECONDS,
            idle_for_s=rank.progress.idle_ns(now_ns) / NANOSECONDS,
            circling_for_s=rank.progress.circling_ns(now_ns) / NANOSECONDS,
            pace=rank.progress.pace(),
        )
        for rank in roster.alive
    )
