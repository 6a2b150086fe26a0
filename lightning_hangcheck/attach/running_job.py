"""The ranks of a run that goes on, asked while it does: their pages, and what its sidecar notes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.attach.recorded_session import READ_LIMIT_S, watch_over
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.look.proc import GONE, born_ns, read_stat
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.pages import Pages
from lightning_hangcheck.report.running_ranks import RunningRank
from lightning_hangcheck.session.housekeeping import of_this_namespace
from lightning_hangcheck.session.session import Session, read_session, sessions_folder
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.machine.process_stat import StatLine
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.observe.watch_notes import RankNote, WatchNotes
    from lightning_hangcheck.rundir.layout import RunFolder


class RunningJob(Struct, frozen=True, kw_only=True):
    """What goes on of a run on this machine at one moment.

    Attributes:
        read_ns: The moment, monotonic.
        here: The run's session is on this machine.
        watched: Its sidecar is alive.
        newest: The newest verdict that the sidecar told; None before the first, and without it.
        ranks: Those that run, by rank.
    """

    read_ns: int
    here: bool = False
    watched: bool = False
    newest: Verdict | None = None
    ranks: tuple[RunningRank, ...] = ()


def running_ranks(folder: RunFolder) -> tuple[RunningRank, ...]:
    """Return the ranks of a run that run on this machine now, by rank.

    Args:
        folder: Of the run.

    Returns:
        None of them where the run is over, on another machine, in another container, or may not be
        read: what its folder tells stands by itself.
    """
    reader = RunningJobReader(folder)
    try:
        return reader.read().ranks
    finally:
        reader.close()


class RunningJobReader:
    """Reads a run again and again while it goes on; its pages stay open in between."""

    def __init__(self, folder: RunFolder) -> None:
        """Look for nothing yet.

        Args:
            folder: Of the run.
        """
        self._folder = folder
        self._session: Session | None = None
        self._pages: Pages | None = None
        self._born: dict[tuple[int, int], int] = {}

    def read(self) -> RunningJob:
        """Read pages and notes as they are now; nothing of a run that is not here."""
        session = self._find()
        now_ns = time.monotonic_ns()
        if session is None or self._pages is None:
            return RunningJob(read_ns=now_ns)
        watch = watch_over(session)
        watched = watch is not None and watch.alive
        notes = watch.notes if watch is not None and watched else None
        self._pages.find_new()
        beats, _ = self._pages.read()
        now_ns = time.monotonic_ns()
        found = {one.rank: one for one in self._ranks(beats, notes, now_ns)}
        return RunningJob(
            read_ns=now_ns,
            here=True,
            watched=watched,
            newest=None if notes is None else notes.newest,
            ranks=tuple(one for _, one in sorted(found.items())),
        )

    def close(self) -> None:
        """Close the pages."""
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _find(self) -> Session | None:
        """The session, as long as it is there: the sidecar frees it at the end."""
        try:
            if self._session is not None and self._session.path.is_dir():
                return self._session
            self.close()
            self._session = within(READ_LIMIT_S, lambda: _session_of(self._folder))
        except (NoAnswer, OSError):
            self._session = None
        if self._session is not None:
            self._pages = Pages(self._session.pages)
        return self._session

    def _ranks(
        self, beats: dict[int, Beat], notes: WatchNotes | None, now_ns: int
    ) -> Iterator[RunningRank]:
        """The sidecar knows which process is which rank also where no variable told the process."""
        noted = {note.pid: note for note in notes.ranks} if notes is not None else {}
        for pid, beat in beats.items():
            note = noted.get(pid)
            rank = beat.rank if note is None else note.rank
            if rank is None or beat.ending != "running":
                continue
            try:
                stat = read_stat(pid)
            except GONE:
                continue
            except OSError:  # unreadable is not gone
                stat = None
            if stat is not None and not self._shows(beat, pid, stat):
                continue
            yield RunningRank(
                rank=rank,
                beat=beat,
                silent_s=_silent_s(beat, note, notes, now_ns),
                step_s=note.step_s if note is not None else None,
                cpu_s=None if stat is None else stat.cpu_s,
                memory_bytes=None if stat is None else stat.rss_bytes,
            )

    def _shows(self, beat: Beat, pid: int, stat: StatLine) -> bool:
        """Whether the process runs, and its page is no earlier one's with the same id."""
        name = (pid, stat.started_ticks)
        if name not in self._born:
            self._born[name] = born_ns(pid)
        return stat.state not in "ZX" and max(beat.pulse_ns, beat.last_beat_ns) >= self._born[name]


def _session_of(folder: RunFolder) -> Session | None:
    wanted = folder.path.resolve()
    for path in sessions_folder(wanted.stat().st_uid).iterdir():
        try:
            session = read_session(path) if of_this_namespace(path) else None
        except (OSError, UnreadableRun):
            continue
        if session is not None and session.run_folder.path.resolve() == wanted:
            return session
    return None


def _silent_s(beat: Beat, note: RankNote | None, notes: WatchNotes | None, now_ns: int) -> float:
    """By its page, or by its sidecar, brought up to the present, where that saw a later sign."""
    silent_s = [(now_ns - beat.last_beat_ns) / NANOSECONDS]
    if note is not None and notes is not None:
        silent_s.append(note.silent_for_s + (now_ns - notes.written_ns) / NANOSECONDS)
    return max(0.0, min(silent_s))
