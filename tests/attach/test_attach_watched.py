"""Visits to jobs that a sidecar watches: its looks wake the ranks, so the kernel forgets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS, end, until
from watch.launched import record_of, start_run, verdict_of

from lightning_hangcheck.cli.main import invoke

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

PATIENCE = {"HANGCHECK_IDLE_AFTER": "7", "HANGCHECK_PROVEN_AFTER": "2"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same patience for the watcher and for us, and no test that waits for half a minute."""
    for name, value in PATIENCE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def watched(folder: Path, mode: str) -> subprocess.Popen[str]:
    """Two ranks of starting_ranks.py below `hangcheck run`; what they announce is thrown away."""
    command = [sys.executable, str(PROGRAMS / "starting_ranks.py"), mode, "2"]
    return start_run(folder, command, HANGCHECK_TEST_ANNOUNCE="2")


def told(folder: Path, *kinds: str) -> bool:
    """Whether the watcher's newest verdict is one of these."""
    return (folder / "verdict.json").is_file() and verdict_of(folder).verdict in kinds


def pids(folder: Path) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in record_of(folder).ranks}


@pytest.mark.real
def test_a_watched_hang_is_a_hang_to_each_visit_in_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never beats, and no rank sleeps for longer than until the watcher's next look."""
    job, run = watched(tmp_path, "fed"), tmp_path / "run"
    try:
        until(lambda: told(run, "hang"), "the watcher to tell the hang")
        pid = str(pids(run)[0])
        codes = [invoke(["attach", "--pid", pid, "--run-dir", f"visit{n}"]) for n in range(3)]
        told_at = verdict_of(run).detected_at
    finally:
        end(job)
    said = capsys.readouterr()
    assert codes == [3, 3, 3], said.out
    for number in range(3):
        verdict = verdict_of(tmp_path / f"visit{number}")
        assert (verdict.verdict, verdict.culprits) == ("hang", (1,))
        assert verdict.stalled_for_s >= 7.0
    assert said.err.startswith(f"hangcheck: this job is watched, see {run}: HANG rank 1 ")
    assert f"reported at {told_at}" in said.err
