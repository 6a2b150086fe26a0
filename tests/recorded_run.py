"""A run that is recorded here without a launcher: its session, with this process as its sidecar."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightning_hangcheck.files import encode_plain, write_atomically
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.observe.run_record import RankNote, WatchNotes
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder
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
    assert own is not None
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
