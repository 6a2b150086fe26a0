"""What the sidecar does beside watching: lost time, files of a run, and what it cannot see."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, end, until
from watch.launched import start_run, verdict_of

from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.observe.watched_rank import Faults
from lightning_hangcheck.recorder.journal_writer import encode_entry
from lightning_hangcheck.watch.roster import PATIENCE_NS, StartStates
from lightning_hangcheck.watch.workers import Metronome

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000_000


def test_a_starved_sidecar_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    starvation = Metronome(0)
    starvation.beat(7 * SECOND)
    assert starvation.read(7 * SECOND) == 7 * SECOND
    (gap,) = starvation.gaps
    assert gap.what == "7 s of the job"
    assert "overloaded machine" in gap.why
    assert "overloaded machine" in capfd.readouterr().err


def test_what_fails_is_a_gap_of_its_rank_said_once_and_what_comes_after_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    faults, seen = Faults(), []
    for rank in (0, 1, 1):
        with faults.of("what it does", rank):
            seen.append(1 // rank)
    with faults.of("a verdict"):
        raise KeyError("x")
    with faults.of("a verdict"):
        raise ValueError("y")
    assert seen == [1, 1]
    told = [(gap.what, gap.rank) for gap in faults.gaps]
    assert told == [("what it does", 0), ("a verdict", None)]
    assert "ZeroDivisionError" in faults.gaps[0].why
    assert "ValueError: y" in faults.gaps[1].why
    assert capfd.readouterr().err.count("the watch goes on") == 2
    with pytest.raises(KeyboardInterrupt), faults.of("a verdict"):
        raise KeyboardInterrupt


PIDS = {0: 100, 1: 101}

NOW = 10**15


def line(pid: int, kind: str = "state", **facts: object) -> bytes:
    return encode_entry(kind, {"facts": facts}, pid)


def test_how_ranks_began_is_shown_once_all_have_spoken() -> None:
    states = StartStates()
    states.take(
        line(100, "said") + line(100, versions=3) + b'{"kind":"state"}\n{"kind":"state","to'
    )
    assert states.news({0: 100}, NOW) is None
    states.take(line(100, versions="python 3.11"))
    assert states.news(PIDS, NOW) is None
    states.take(line(101, versions="python 3.12"))
    shown = states.news(PIDS, NOW)
    assert shown is not None
    assert "versions: python 3.11 (rank 0); python 3.12 (rank 1)" in shown
    assert states.news(PIDS, NOW + PATIENCE_NS) is None


def test_what_is_offloaded_is_kept_once_for_the_ledger() -> None:
    states = StartStates()
    for pid in PIDS.values():
        states.take(encode_entry("offloaded", {"what": "parts on cpu"}, pid))
    assert list(states.offloaded) == ["parts on cpu"]


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
    (line,) = ledger_file.read(tmp_path / "hangcheck_runs" / "ledger.jsonl").runs
    assert (line.verdict, line.exit_code, line.ranks) == ("finished", 0, 1)
    (stall,) = line.stalls
    assert stall.verdict == "suspect"
    assert 4 <= stall.seconds <= line.duration_s
    assert stall.rank_hours == pytest.approx(stall.seconds / 3600, abs=1e-6)


@pytest.mark.parametrize("inside", [(), ("hangcheck",)], ids=["in front", "behind"])
def test_hangcheck_in_front_of_srun_says_the_way_out(tmp_path: Path, inside: tuple[str]) -> None:
    (tmp_path / "srun").symlink_to("/bin/true")
    process = start_run(tmp_path, [str(tmp_path / "srun"), *inside])
    try:
        _, said = process.communicate(timeout=60)
    finally:
        end(process)
    assert said.count("srun hangcheck run -- python train.py") == (not inside)


@pytest.mark.real
def test_a_python_that_runs_no_start_up_file_is_a_gap(tmp_path: Path) -> None:
    program = "import time; time.sleep(1000)"
    process = start_run(
        tmp_path,
        [sys.executable, "-uI", "-X", "dev", "-c", program, "-S"],
        RANK="0",
        WORLD_SIZE="1",
        HANGCHECK_SUSPECT_OUTSIDE_AFTER="4",
    )
    errors = ""
    try:
        assert process.stderr is not None
        while "SUSPECT" not in errors:
            errors += process.stderr.readline()
        until((tmp_path / "run/verdict.json").exists, "its verdict on the disk")
    finally:
        end(process)
    (gap,) = verdict_of(tmp_path / "run").gaps
    assert (gap.what, gap.why.partition(";")[0]) == (
        "steps and sections",
        "its Python did not run our start-up file",
    )
