"""The session in which a job records, what its ranks say there, and who watches it already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.attach.watched_history import WHAT_WATCHER_SAW
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.decoding import Fact, decode
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.look.proc import read_environment
from lightning_hangcheck.machine.process_stat import is_alive
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.observe.watch_notes import WatchNotes
from lightning_hangcheck.recorder.page.reader import PageReader
from lightning_hangcheck.session.housekeeping import of_this_namespace
from lightning_hangcheck.session.session import (
    SESSION_VARIABLE,
    Session,
    SidecarFacts,
    read_session,
    sessions_folder,
)
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

READ_LIMIT_S = 1.0
"""For a few files in memory and one in the run folder, whose disk may not answer."""
WHAT = "pages and flight records"


class RecordedSession(Struct, frozen=True, kw_only=True):
    """Where a job records.

    Attributes:
        session: Of its ranks; None where they don't, or where we cannot look.
        gaps: Why a session that is named cannot be used.
    """

    session: Session | None = None
    gaps: tuple[Gap, ...] = ()


class Watch(Struct, frozen=True, kw_only=True):
    """A sidecar that watches the job, or did.

    Attributes:
        run_folder: Where it keeps what it finds.
        alive: Whether it is still there.
        notes: What it knows now; None where they cannot be read, and ``gaps`` say why.
    """

    run_folder: Path
    alive: bool = True
    notes: WatchNotes | None = None
    gaps: tuple[Gap, ...] = ()


def find_session(pids: Iterable[int]) -> RecordedSession:
    """Find the session in which a job's ranks record.

    Args:
        pids: Its ranks. `hangcheck run` names the session in their environment; a callback under
            another launcher leaves its page in a session of the ranks' user.
    """
    try:
        return within(READ_LIMIT_S, lambda: _find(tuple(pids)))
    except (NoAnswer, OSError) as error:
        why = f"the job's session cannot be read ({error})"
        return RecordedSession(gaps=(Gap(WHAT, None, why, "recording"),))


def watch_over(session: Session) -> Watch | None:
    """Return who watches the job, or did last; None where nobody ever said so."""
    folder = session.run_folder.path
    try:
        facts = within(READ_LIMIT_S, lambda: _read(session.sidecar_file, SidecarFacts))
    except FileNotFoundError:
        return None
    except (NoAnswer, OSError, UnreadableRun) as error:
        return Watch(run_folder=folder, gaps=(Gap(WHAT_WATCHER_SAW, None, str(error), "watcher"),))
    alive = is_alive(facts.pid, facts.started_ticks)
    try:
        notes = within(READ_LIMIT_S, lambda: _read(session.watch_file, WatchNotes))
    except (NoAnswer, OSError, UnreadableRun) as error:
        gap = Gap(WHAT_WATCHER_SAW, None, f"its notes cannot be read ({error})", "watcher")
        return Watch(run_folder=folder, alive=alive, gaps=(gap,))
    return Watch(run_folder=folder, alive=alive, notes=notes)


def beats_of(session: Session, born_ns: Mapping[int, int]) -> dict[int, Beat]:
    """Read the pages of a job's processes; those that record none are left out.

    Args:
        session: In which they record.
        born_ns: When each of them started, monotonic, by process id. A page that fell silent
            before is of an earlier process with that id.
    """
    beats = {}
    for pid, started_ns in born_ns.items():
        reader = PageReader(session.pages / f"{pid}.page")
        beat = reader.read()
        reader.close()
        if isinstance(beat, Beat) and max(beat.pulse_ns, beat.last_beat_ns) >= started_ns:
            beats[pid] = beat
    return beats


def _find(pids: tuple[int, ...]) -> RecordedSession:
    named = next(filter(None, map(_named_session, pids)), None)
    folders = [named] if named is not None else list(_with_pages(pids))
    if not folders:
        return RecordedSession()
    folder = folders[0]
    try:
        if not of_this_namespace(folder):
            why, remedy = "the job records in another pid namespace", "attach inside its container"
            return RecordedSession(gaps=(Gap(WHAT, None, why, "recording", remedy),))
        return RecordedSession(session=read_session(folder))
    except (OSError, UnreadableRun) as error:
        why, remedy = (
            f"the job's session {folder} cannot be read ({error})",
            "attach where the job runs",
        )
        return RecordedSession(gaps=(Gap(WHAT, None, why, "recording", remedy),))


def _named_session(pid: int) -> Path | None:
    environment = read_environment(pid)
    named = "" if isinstance(environment, Gap) else environment.get(SESSION_VARIABLE, "")
    return Path(named) if named else None


def _with_pages(pids: tuple[int, ...]) -> Iterator[Path]:
    """Sessions of this user that hold a page of any of these, the newest page first."""
    pages = []
    for pid in pids:
        try:
            user_id = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - /proc/PID is no real path
            found = list(sessions_folder(user_id).glob(f"*/pages/{pid}.page"))
            pages += [(page.stat().st_mtime, page) for page in found]
        except OSError:
            continue
    yield from (page.parent.parent for _, page in sorted(pages, reverse=True))


def _read(path: Path, kind: type[Fact]) -> Fact:
    return decode(read_owned(path, EVIDENCE_BYTES), kind, str(path))
