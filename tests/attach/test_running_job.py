"""The ranks of a run that goes on, as `hangcheck report` asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import RunningProgram, StartProgram, end
from recorded_run import AT, note_as_its_sidecar, note_of, recorded_run, told

from lightning_hangcheck.attach.recorded_session import RunningJobReader
from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.session.session import Session


@pytest.fixture
def recording(program: StartProgram, tmp_path: Path) -> Iterator[tuple[RunningProgram, Session]]:
    """A rank that records, and its session."""
    with recorded_run(tmp_path / "run") as session:
        yield program("recording_alone.py", **told(session, 0, 1)), session


def test_a_rank_that_runs_is_read_from_its_page(
    recording: tuple[RunningProgram, Session], tmp_path: Path
) -> None:
    (rank,) = RunningJobReader(RunFolder(tmp_path / "run")).read().ranks
    assert (rank.rank, rank.beat.pid, rank.step_s) == (0, recording[0].pid, None)
    assert rank.beat.checkpoint is not None
    assert rank.beat.checkpoint.name == "Model created"
    assert RunningJobReader(RunFolder(tmp_path)).read().ranks == ()


def test_its_sidecar_tells_the_pace(
    recording: tuple[RunningProgram, Session], tmp_path: Path
) -> None:
    one, session = recording
    note_as_its_sidecar(session, note_of(5, one.pid))
    (rank,) = RunningJobReader(RunFolder(tmp_path / "run")).read().ranks
    assert (rank.rank, rank.step_s) == (5, 0.5)


def test_a_reader_follows_a_run_from_before_its_session_until_that_is_gone(
    recording: tuple[RunningProgram, Session], tmp_path: Path
) -> None:
    one, session = recording
    reader = RunningJobReader(RunFolder(tmp_path / "run"))
    first = reader.read()
    assert (first.here, first.watched, [rank.rank for rank in first.ranks]) == (True, False, [0])
    assert first.ranks[0].memory_bytes is not None
    note_as_its_sidecar(session, note_of(0, one.pid))
    assert reader.read().watched
    end(one.process)
    assert reader.read().ranks == ()
    session.remove()
    assert not reader.read().here


def test_a_rank_that_has_ended_does_not_run(
    recording: tuple[RunningProgram, Session], tmp_path: Path
) -> None:
    end(recording[0].process)
    assert RunningJobReader(RunFolder(tmp_path / "run")).read().ranks == ()


def test_report_shows_where_a_running_rank_is(
    recording: tuple[RunningProgram, Session], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(run_id="run", command="python train.py", started_at=AT)
    (tmp_path / "run" / "run.json").write_bytes(encode(record))
    assert invoke(["report", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("no verdict yet; 1 rank of it running here\n")
    assert "CHECKPOINT 5: Model created, " in text
