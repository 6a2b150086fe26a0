"""The ranks of a run that goes on, as `hangcheck report` asks for them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from processes import end

from lightning_hangcheck.attach.running_job import running_ranks
from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.files.atomic import write_atomically
from lightning_hangcheck.machine.process_stat import read_process_stat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.observe.watch_notes import RankNote, WatchNotes
from lightning_hangcheck.rundir.layout import RunFolder, prepare_run_folder
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

    from processes import RunningProgram, StartProgram

    from lightning_hangcheck.session.session import Session


AT = "2026-11-20T10:24:16.000Z"


@pytest.fixture
def recording(program: StartProgram, tmp_path: Path) -> Iterator[tuple[RunningProgram, Session]]:
    """A rank that records, and its session."""
    folder = prepare_run_folder(RunFolder(tmp_path / "run"))
    facts = SessionFacts(
        run_dir=str(folder.path), command="python train.py", started_at=AT, root_pid=os.getpid()
    )
    session = open_session(session_folder(new_key()), facts)
    told = {"HANGCHECK_SESSION": str(session.path), "RANK": "0", "WORLD_SIZE": "1"}
    yield program("recording_alone.py", **told), session
    session.remove()


def _note_as_its_sidecar(session: Session, note: RankNote) -> None:
    """Write what the sidecar of this session would, this process in its place."""
    own = read_process_stat(os.getpid())
    assert own is not None
    facts = SidecarFacts(pid=os.getpid(), started_ticks=own.started_ticks)
    write_atomically(session.sidecar_file, encode(facts))
    notes = WatchNotes(written_ns=time.monotonic_ns(), ranks=(note,))
    write_atomically(session.watch_file, encode(notes))


def test_a_rank_that_runs_is_read_from_its_page(
    recording: tuple[RunningProgram, Session], tmp_path: Path
) -> None:
    (rank,) = running_ranks(RunFolder(tmp_path / "run"))
    assert (rank.rank, rank.beat.pid, rank.step_s) == (0, recording[0].pid, None)
    assert rank.beat.checkpoint is not None
    assert rank.beat.checkpoint.name == "Model created"
    assert running_ranks(RunFolder(tmp_path)) == ()


def test_its_sidecar_tells_the_pace(
    recording: tuple[RunningProgram, Session], tmp_path: Path
) -> None:
    one, session = recording
    note = RankNote(
        rank=5,
        pid=one.pid,
        started_ticks=0,
        silent_for_s=0.0,
        idle_for_s=0.0,
        circling_for_s=0.0,
        step_s=0.5,
    )
    _note_as_its_sidecar(session, note)
    (rank,) = running_ranks(RunFolder(tmp_path / "run"))
    assert (rank.rank, rank.step_s) == (5, 0.5)


def test_a_rank_that_has_ended_does_not_run(
    recording: tuple[RunningProgram, Session], tmp_path: Path
) -> None:
    end(recording[0].process)
    assert running_ranks(RunFolder(tmp_path / "run")) == ()


def test_report_shows_where_a_running_rank_is(
    recording: tuple[RunningProgram, Session], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(run_id="run", command="python train.py", started_at=AT)
    (tmp_path / "run" / "run.json").write_bytes(encode(record))
    assert invoke(["report", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("no verdict yet; 1 rank of it running here\n")
    assert "CHECKPOINT 5: Model created, " in text
