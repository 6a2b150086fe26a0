"""The session in which a job records: its ranks' pages, its watcher, and the watcher's notes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import EVIDENCE_BYTES, decode, read_owned
from lightning_hangcheck.look.proc import (
    UNREADABLE,
    Looked,
    Unseen,
    born_ns,
    environments,
    guarded,
    vitals,
)
from lightning_hangcheck.machine import is_alive
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.run_record import RankNote, WatchNotes
from lightning_hangcheck.recorder.page_reader import PageReader
from lightning_hangcheck.report.saved_run import RunningRank
from lightning_hangcheck.session.session import (
    SESSION_VARIABLE,
    Session,
    SidecarFacts,
    of_this_namespace,
    read_session,
    sessions_folder,
)
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.files import Fact
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.observe.discovery import FoundRank
    from lightning_hangcheck.rundir import RunFolder

READ_LIMIT_S = 1.0
"""Time to read a few files in memory, and one in the run folder, whose disk may not answer."""
FRESH_S = 5.0
"""Notes up to this age count as current; `hangcheck attach` itself looks for two seconds."""
RECORDED, SEEN = "pages and flight records", "what the job's watcher saw"
STANDS = ("hang", "dead", "crashed")
"""Verdicts that set the exit code, until the sidecar reports that the job recovered."""


class Watch(Struct, frozen=True, kw_only=True):
    """A sidecar that watches the job, or did; if it has no notes, ``gaps`` say why."""

    run_folder: Path
    alive: bool = True
    notes: WatchNotes | None = None
    gaps: tuple[Gap, ...] = ()


def find_session(pids: Iterable[int]) -> Looked[Session]:
    """Find the session in which a job's ranks record, if they do, by their process ids.

    `hangcheck run` names the session in the ranks' environment. A callback under another launcher
    leaves its page in a session of the ranks' user.
    """

    def find() -> Session | None:
        folder, newest_s = None, 0.0
        variables = environments(pids)
        for environment in variables.values():
            if not isinstance(environment, Gap) and environment.get(SESSION_VARIABLE):
                folder = Path(environment[SESSION_VARIABLE])
                break
        users: set[int] = set()
        for pid in variables if folder is None else ():
            with suppress(OSError):
                users.add(os.stat(f"/proc/{pid}").st_uid)  # noqa: PTH116 - no real path
        wanted = {f"{pid}.page" for pid in variables}
        for user_id in users:  # else that session of this user with the newest page of any
            for page in sessions_folder(user_id).glob("*/pages/*.page"):
                with suppress(OSError):  # containers that share this memory use the same numbers
                    if page.name in wanted and of_this_namespace(page.parent.parent):
                        changed_s = page.stat().st_mtime
                        if changed_s >= newest_s:
                            folder, newest_s = page.parent.parent, changed_s
        if folder is None:
            return None
        try:
            if of_this_namespace(folder):
                return read_session(folder)
        except (OSError, UnreadableRun) as error:
            why = f"the job's session {folder} cannot be read ({error})"
            raise Unseen(why, "attach where the job runs") from error
        raise Unseen("the job records in another pid namespace", "attach inside its container")

    return guarded("recording", RECORDED, None, partial(within, READ_LIMIT_S, find))


def beats_of(session: Session, born_ns: Mapping[int, int]) -> dict[int, Beat]:
    """Read the page of each process, if it has one that is not older than the process."""
    beats = {}
    for pid, started_ns in born_ns.items():
        reader = PageReader(session.pages / f"{pid}.page")
        beat = reader.read()
        reader.close()
        if isinstance(beat, Beat) and max(beat.pulse_ns, beat.last_beat_ns) >= started_ns:
            beats[pid] = beat
    return beats


def watch_over(session: Session) -> Watch | None:
    """Return the sidecar that watches the job, or did last; None if there never was one."""

    def read(path: Path, kind: type[Fact]) -> Fact:
        return within(
            READ_LIMIT_S, lambda: decode(read_owned(path, EVIDENCE_BYTES), kind, str(path))
        )

    watch = Watch(run_folder=session.run_folder.path)
    try:
        facts = read(session.sidecar_file, SidecarFacts)
        watch = replace(watch, alive=is_alive(facts.pid, facts.started_ticks))
        return replace(watch, notes=read(session.watch_file, WatchNotes))
    except (NoAnswer, OSError, UnreadableRun) as error:
        if isinstance(error, FileNotFoundError) and not session.sidecar_file.exists():
            return None
        why = f"its notes cannot be read ({error})"
        return replace(watch, gaps=(Gap(SEEN, None, why, "watcher"),))


def history(
    notes: WatchNotes, ranks: Sequence[FoundRank], slept: Mapping[int, float], now_ns: int
) -> tuple[dict[int, RankNote], tuple[Gap, ...]]:
    """Return, by rank, what the sidecar knows, brought up to the present.

    ``slept``: seconds for which processes have slept. Notes older than `FRESH_S` give a gap.
    """
    age_s = _age_s(notes, now_ns)
    found = {(rank.rank, rank.pid, rank.started_ticks) for rank in ranks}
    known = {
        note.rank: replace(
            note,
            silent_for_s=note.silent_for_s + age_s,
            idle_for_s=note.idle_for_s + age_s,
            circling_for_s=note.circling_for_s + age_s,
        )
        for note in notes.ranks
        if (note.rank, note.pid, note.started_ticks) in found
        and (age_s <= FRESH_S or slept.get(note.pid, 0.0) >= age_s)
    }
    why = (
        f"its newest note is {age_s:.0f} s old: it is stopped, has no processor, or has ended; "
        "what ranks did since is known only of those that slept"
    )
    return known, () if age_s <= FRESH_S else (Gap(SEEN, None, why, "watcher"),)


def hang_stands(notes: WatchNotes, case: Case) -> bool:
    """Whether a hang that the sidecar reported still holds at the time of a case.

    The sidecar withdraws it some seconds after its culprits have progressed. Until then the notes
    show that progress, and the case shows what came after the notes.
    """
    age_s = _age_s(notes, case.taken_ns)
    if notes.newest is None or notes.newest.verdict not in STANDS or age_s > FRESH_S:
        return False
    culprits = notes.newest.culprits
    told_s = (notes.written_ns - notes.published_ns) / NANOSECONDS
    alive = {note.rank: note.silent_for_s for note in notes.ranks if note.rank in culprits}
    if alive and all(silent_s < told_s for silent_s in alive.values()):
        return False
    seen = [view for view in case.ranks if view.rank in culprits]
    return any(view.process_exit is not None or view.silent_for_s >= age_s for view in seen)


def _age_s(notes: WatchNotes, now_ns: int) -> float:
    return max(0.0, (now_ns - notes.written_ns) / NANOSECONDS)


class RunningJob(Struct, frozen=True, kw_only=True):
    """A running job at one moment; ``here``: its session is on this machine."""

    read_ns: int
    here: bool = False
    watched: bool = False
    newest: Verdict | None = None
    ranks: tuple[RunningRank, ...] = ()


class RunningJobReader:
    """Reads a running job again and again."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._session: Session | None = None

    def read(self) -> RunningJob:
        """Read pages and notes as they are now.

        There are no ranks if the run is over, elsewhere, in another container, or may not be read.
        """
        try:  # a session exists as long as its job: the sidecar removes it at the end
            if self._session is None or not self._session.path.is_dir():
                self._session = within(READ_LIMIT_S, lambda: _session_of(self._folder))
        except (NoAnswer, OSError):
            self._session = None
        session = self._session
        if session is None:
            return RunningJob(read_ns=time.monotonic_ns())
        watch = watch_over(session)
        watched = watch is not None and watch.alive
        notes = watch.notes if watch is not None and watched else None
        pids = [int(path.stem) for path in session.pages.glob("*.page") if path.stem.isdecimal()]
        beats = beats_of(session, {pid: born_ns(pid) for pid in pids})
        now_ns = time.monotonic_ns()
        found = {rank.rank: rank for rank in _ranks(beats, notes, now_ns)}
        return RunningJob(
            read_ns=now_ns,
            here=True,
            watched=watched,
            newest=None if notes is None else notes.newest,
            ranks=tuple(rank for _, rank in sorted(found.items())),
        )


def _session_of(folder: RunFolder) -> Session | None:
    wanted = folder.path.resolve()
    for path in sessions_folder(wanted.stat().st_uid).iterdir():
        with suppress(OSError, UnreadableRun):
            session = read_session(path) if of_this_namespace(path) else None
            if session is not None and session.run_folder.path.resolve() == wanted:
                return session
    return None


def _ranks(
    beats: Mapping[int, Beat], notes: WatchNotes | None, now_ns: int
) -> Iterator[RunningRank]:
    noted = {note.pid: note for note in notes.ranks} if notes is not None else {}
    for pid, beat in beats.items():
        note = noted.get(pid)
        rank = beat.rank if note is None else note.rank
        if rank is None or beat.ending != "running":
            continue
        seen = vitals(pid)
        if seen is None or seen.has_ended:
            continue
        silent_s = (now_ns - beat.last_beat_ns) / NANOSECONDS
        if note is not None and notes is not None:  # the sidecar may have seen a later sign of life
            silent_s = min(silent_s, note.silent_for_s + _age_s(notes, now_ns))
        yield RunningRank(
            rank=rank,
            beat=beat,
            silent_s=max(0.0, silent_s),
            step_s=note.step_s if note is not None else None,
            cpu_s=None if seen is UNREADABLE else seen.cpu_s,
            memory_bytes=None if seen is UNREADABLE else seen.rss_bytes,
        )
