"""The ranks of a run that goes on, asked while it does: their pages, and what its sidecar notes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightning_hangcheck.attach.recorded_session import READ_LIMIT_S, beats_of, watch_over
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.probes.proc.process_tree import born_ns
from lightning_hangcheck.probes.proc.vitals import has_ended
from lightning_hangcheck.report.running_ranks import RunningRank
from lightning_hangcheck.session.housekeeping import of_this_namespace
from lightning_hangcheck.session.session import Session, read_session, sessions_folder
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.observe.watch_notes import RankNote, WatchNotes
    from lightning_hangcheck.rundir.layout import RunFolder


def running_ranks(folder: RunFolder) -> tuple[RunningRank, ...]:
    """Return the ranks of a run that run on this machine now, by rank.

    Args:
        folder: Of the run.

    Returns:
        None of them where the run is over, on another machine, in another container, or may not be
        read: what its folder tells stands by itself.
    """
    try:
        session = within(READ_LIMIT_S, lambda: _session_of(folder))
    except (NoAnswer, OSError):
        return ()
    if session is None:
        return ()
    watch = watch_over(session)
    notes = watch.notes if watch is not None and watch.alive else None
    now_ns = time.monotonic_ns()
    found = {one.rank: one for one in _ranks(_read_beats(session), notes, now_ns)}
    return tuple(one for _, one in sorted(found.items()))


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


def _read_beats(session: Session) -> dict[int, Beat]:
    """The pages of processes that are there; that of an earlier one with the same id is none."""
    try:
        pids = [int(page.stem) for page in session.pages.glob("*.page") if page.stem.isdecimal()]
    except OSError:  # the session is being freed
        return {}
    return beats_of(session, {pid: born_ns(pid) for pid in pids if not has_ended(pid)})


def _ranks(beats: dict[int, Beat], notes: WatchNotes | None, now_ns: int) -> Iterator[RunningRank]:
    """The sidecar knows which process is which rank also where no variable told the process."""
    noted = {note.pid: note for note in notes.ranks} if notes is not None else {}
    for pid, beat in beats.items():
        note = noted.get(pid)
        rank = beat.rank if note is None else note.rank
        if rank is None or beat.ending != "running":
            continue
        silent_s = [(now_ns - beat.last_beat_ns) / NANOSECONDS]
        if note is not None and notes is not None:
            silent_s.append(_silent_s(note, notes, now_ns))
        yield RunningRank(
            rank=rank,
            beat=beat,
            silent_s=max(0.0, min(silent_s)),
            step_s=note.step_s if note is not None else None,
        )


def _silent_s(note: RankNote, notes: WatchNotes, now_ns: int) -> float:
    """Brought up to the present."""
    return note.silent_for_s + (now_ns - notes.written_ns) / NANOSECONDS
