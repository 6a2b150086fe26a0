"""The files that tell of a run: who its ranks are, and what it came to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, until
from recorded_run import recorded_run
from watch.launched import record_of

from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import Run
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.watched_rank import Faults, WatchedRound
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder
from lightning_hangcheck.settings import Settings
from lightning_hangcheck.watch.alarm import Alarm
from lightning_hangcheck.watch.roster import Roster
from lightning_hangcheck.watch.run_files import RunFiles, offloaded
from lightning_hangcheck.watch.workers import Scout
from lightning_hangcheck.watch.writer import Writer

if TYPE_CHECKING:
    from pathlib import Path


def test_a_launcher_that_was_taken_for_a_rank_until_one_came_is_none(tmp_path: Path) -> None:
    """torchrun waits in its rendezvous; the rank that it starts then is not number 0."""
    with recorded_run(tmp_path / "run") as session:
        writer = Writer(session.run_folder, session.journals)
        with closing(Roster(session, Scout(session), Faults(), 0)) as roster:
            files = RunFiles(session, Settings(), writer, roster)

            def numbers() -> list[int]:
                files.keep(Alarm(), (), 0)
                file = tmp_path / "run" / "run.json"
                return [one.rank for one in record_of(file.parent).ranks] if file.exists() else []

            roster.round.take_in(FoundRank(rank=0, pid=os.getpid(), guessed=True), 0)
            until(lambda: numbers() == [0], "the launcher")
            roster.round = WatchedRound(0)
            roster.round.take_in(FoundRank(rank=1, pid=os.getpid(), world_size=2), 0)
            until(lambda: numbers() == [1], "the rank")
        writer.close(30.0)
        (present,) = record_of(tmp_path / "run").rounds
        places = [(one.rank, one.host, one.pid) for one in present.ranks]
        assert places == [(1, socket.gethostname(), os.getpid())]


STALLS = """
import time
from pathlib import Path
import lightning_hangcheck as hc
told = next(Path("hangcheck_runs").iterdir()) / "verdicts"
hc.beat()
while not (told / "1.json").exists():
    time.sleep(0.05)
while not (told / "2.json").exists():
    hc.beat()
    time.sleep(0.05)
"""
"""Stands still until that is told, and goes on until that is told, too."""


def watched(folder: Path, code: str, *options: str, **environment: str) -> int:
    command = [sys.executable, "-m", "lightning_hangcheck", "run", *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "HANGCHECK_SUSPECT_OUTSIDE_AFTER": "4", **environment},
    )  # fmt: skip
    return done.returncode


@pytest.mark.real
def test_a_run_is_kept_with_its_stalls_and_what_they_cost(tmp_path: Path) -> None:
    assert watched(tmp_path, STALLS) == 0
    (line,) = ledger_file.read(tmp_path / "hangcheck_runs" / "ledger.jsonl").lines
    assert isinstance(line, Run)
    assert (line.verdict, line.exit_code, line.ranks) == ("finished", 0, 1)
    (stall,) = line.stalls
    assert stall.verdict == "suspect"
    assert 4 <= stall.seconds <= line.duration_s
    assert stall.rank_hours == pytest.approx(stall.seconds / 3600, abs=1e-6)


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_run_folder_that_was_named_gets_nothing_beside_it(tmp_path: Path) -> None:
    assert watched(tmp_path, "raise SystemExit(4)", "--run-dir", "mine") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    watched(tmp_path, "pass", "--run-dir", "other", "--ledger", "ledger.jsonl")
    (line,) = ledger_file.read(tmp_path / "ledger.jsonl").lines
    assert isinstance(line, Run)
    assert line.run_id == "other"


LINE = '{"at":"2026-11-20T10:24:16.000Z","kind":"%s","what":"%s"}\n'


def test_each_offloaded_model_is_taken_once_and_nothing_else(tmp_path: Path) -> None:
    folder = prepare_run_folder(RunFolder(tmp_path / "run"))
    folder.journal(0, 0).write_text(LINE % ("offloaded", "A") + LINE % ("said", "B") + '{"torn')
    folder.journal(1, 0).write_text(LINE % ("offloaded", "A") + LINE % ("offloaded", "C"))
    assert offloaded(folder) == ("A", "C")


def test_a_run_without_journals_tells_nothing(tmp_path: Path) -> None:
    assert offloaded(RunFolder(tmp_path / "gone")) == ()
