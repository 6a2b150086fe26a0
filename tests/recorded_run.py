"""Runs that are recorded here without a launcher: their sessions, pages and journals."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck.files import encode_plain, write_atomically
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.observe.run_record import RankNote, WatchNotes
from lightning_hangcheck.recorder.page_reader import PageReader
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder
from lightning_hangcheck.session.journal_carrier import Carrier
from lightning_hangcheck.session.session import (
    SessionFacts,
    SidecarFacts,
    new_key,
    open_session,
    session_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.session.session import Session

AT = "2026-11-20T10:24:16.000Z"


def job_session(folder: Path, *, launched: bool = True, root_pid: int | None = None) -> Session:
    """Open the session of a job; of a launched one, no rank takes it away while others come."""
    facts = SessionFacts(
        run_dir=str(folder / "run"),
        command="train.py",
        started_at=AT,
        root_pid=os.getpid() if root_pid is None else root_pid,
        launched=launched,
    )
    return open_session(folder / "session", facts)


def beat_on(page: Path) -> Beat:
    """Read a page, which must be there."""
    reader = PageReader(page)
    beat = reader.read()
    reader.close()
    assert isinstance(beat, Beat), beat
    return beat


def carrier_of(session: Session) -> Carrier:
    """What carries its journals from shared memory to the run folder, as in its sidecar."""
    return Carrier(session.journals, partial(prepare_run_folder, session.run_folder))


@contextmanager
def recorded_run(path: Path) -> Iterator[Session]:
    """Open the session of a run in this folder; it is freed at the end."""
    folder = prepare_run_folder(RunFolder(path))
    facts = SessionFacts(
        run_dir=str(folder.path), command="python train.py", started_at=AT, root_pid=os.getpid()
    )
    session = open_session(session_folder(new_key()), facts)
    try:
        yield session
    finally:
        session.remove()


def told(session: Session, rank: int, world_size: int) -> dict[str, str]:
    """Return what a launcher tells a rank of this run."""
    return {
        "HANGCHECK_SESSION": str(session.path),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
    }


def note_as_its_sidecar(session: Session, *notes: RankNote, newest: Verdict | None = None) -> None:
    """Write what the sidecar of this session would, this process in its place."""
    own = read_process_stat(os.getpid())
    facts = SidecarFacts(pid=os.getpid(), started_ticks=own.started_ticks)
    write_atomically(session.sidecar_file, encode_plain(facts))
    now_ns = time.monotonic_ns()
    told_ns = now_ns if newest is not None else 0
    written = WatchNotes(written_ns=now_ns, ranks=notes, newest=newest, published_ns=told_ns)
    write_atomically(session.watch_file, encode(written))


def note_of(rank: int, pid: int, silent_for_s: float = 0.0, step_s: float = 0.5) -> RankNote:
    """What a sidecar knows of a rank."""
    return RankNote(
        rank=rank,
        pid=pid,
        started_ticks=0,
        silent_for_s=silent_for_s,
        idle_for_s=silent_for_s,
        circling_for_s=0.0,
        step_s=step_s,
    )
