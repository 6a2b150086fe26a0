"""Keeps watch.json: what this sidecar knows of the ranks, for who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.files.atomic import write_atomically
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.observe.watch_notes import RankNote, WatchNotes
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.watch.ranks.roster import Roster
    from lightning_hangcheck.watch.telling.publishing import Publisher

EVERY_S = 1.0
"""A note of eight ranks costs the sidecar 0.1 ms; `hangcheck attach` looks for two seconds."""


class NoteKeeper:
    """Keeps watch.json."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._written_ns = 0
        self._told_ns = 0

    def update(self, roster: Roster, told: Publisher, now_ns: int) -> None:
        """Write down how things are, once a second, and what was told at once.

        Memory that is full costs no more than that.
        """
        if told.told_ns == self._told_ns and now_ns - self._written_ns < EVERY_S * NANOSECONDS:
            return
        self._written_ns, self._told_ns = now_ns, told.told_ns
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
            pace=rank.pace(),
            step_s=rank.step_pace.median_s,
        )
        for rank in roster.alive
    )
