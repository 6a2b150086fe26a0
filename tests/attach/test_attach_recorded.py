"""Visits to jobs that record: what their pages, flight records and sidecar add."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, StartProgram, end, until
from watch.launched import start_run, verdict_of

from lightning_hangcheck.attach.job_search import find_jobs, look_around
from lightning_hangcheck.attach.recorded_session import (
    RecordedSession,
    beats_of,
    find_session,
    watch_over,
)
from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.look.proc import born_ns, slept_s

if TYPE_CHECKING:
    from pathlib import Path


from lightning_hangcheck.text.shown import NANOSECONDS


def _two_came(folder: Path) -> list[int]:
    pids = [int(file.stem) for file in folder.glob("*.came")]
    return pids if len(pids) == 2 else []


def _waits(pid: int) -> bool:
    slept = slept_s(pid)
    return slept is None or slept >= 1.5


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_watched_job_is_told_with_its_checkpoints_and_flight_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks alone would not prove that the ranks parted, nor say at which operation.

    Of two ranks the one that a test of the rank singles out has left the common way, even where its
    next operation is of the kind that the steps before had: at this line none of them stood.
    """
    monkeypatch.chdir(tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    job = start_run(tmp_path, [*torchrun, str(PROGRAMS / "attached_parting.py"), str(tmp_path)])
    try:
        came = until(lambda: _two_came(tmp_path), "both to part")
        until(lambda: all(map(_waits, came)), "both to wait")
        code = invoke(["attach", "--pid", str(came[0]), "--run-dir", "visit"])
    finally:
        end(job)
    said = capsys.readouterr()
    verdict = verdict_of(tmp_path / "visit")
    assert (code, verdict.verdict, verdict.culprits) == (3, "hang", (0,)), said.out
    (parted,) = verdict.collectives
    assert (parted.seq, set(parted.ops.values())) == (6, {"0", "1"})
    assert [one.last_checkpoint.name for one in verdict.ranks] == ["Model created"] * 2
    assert not any("flight" in gap.what for gap in verdict.gaps)
    assert said.err.startswith(f"hangcheck: this job is watched, see {tmp_path / 'run'}: ")


def test_a_session_that_no_environment_names_is_found_by_the_page_in_it(
    program: StartProgram, tmp_path: Path
) -> None:
    """A page that fell silent before the process started is of an earlier one with that id."""
    running = program("recording_alone.py", HANGCHECK_RUN_DIR=str(tmp_path / "run"))
    session = find_session([running.pid]).session
    assert session is not None
    try:
        assert str(session.path) == running.first_words
        assert watch_over(session) is None
        beat = beats_of(session, {running.pid: born_ns(running.pid)})[running.pid]
        assert beat.checkpoint is not None
        assert beat.checkpoint.name == "Model created"
        assert beats_of(session, {running.pid: time.monotonic_ns() + NANOSECONDS}) == {}
    finally:
        session.remove()


def test_a_session_that_is_gone_is_a_gap_and_costs_nothing_else(
    program: StartProgram, tmp_path: Path
) -> None:
    running = program("sleeping.py", HANGCHECK_SESSION=str(tmp_path / "gone"))
    recorded = find_session([running.pid])
    assert recorded.session is None
    (gap,) = recorded.gaps
    assert f"session {tmp_path / 'gone'} cannot be read" in gap.reason


def test_a_job_that_does_not_record_offers_nothing_and_misses_nothing(
    program: StartProgram,
) -> None:
    assert find_session([program("sleeping.py").pid]) == RecordedSession()


def test_ranks_that_no_environment_tells_are_known_by_their_pages(
    program: StartProgram, tmp_path: Path
) -> None:
    """A script that spawns its ranks itself."""
    launcher = program("recording_spawned.py", HANGCHECK_RUN_DIR=str(tmp_path / "run"))
    words = [launcher.first_words, launcher.announcement()]
    (job,) = find_jobs(look_around(), [launcher.pid])
    session = find_session(job.pids).session
    assert session is not None
    session.remove()
    told = {(rank.rank, rank.pid, rank.world_size) for rank in job.ranks}
    assert told == {(*map(int, line.split()), 2) for line in words}
