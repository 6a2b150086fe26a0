"""Storage that stops answering delays neither training nor its end, and one sentence tells of it.

The storage is real, and so is the state D of whoever writes to it. Each job is measured against
the same job on storage that answers.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS, end, until
from stalling_storage import StallingStorage, stalling_storage
from watch.launched import python, run, start_run, verdict_of

from lightning_hangcheck.rundir.journal_reader import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]
MOST_DELAY_S = 2.0
NOISE_S = 1.0  # between two runs of the same job beside other work; a held one never ends
MOST_AFTER_S = 10
LIMIT_S = 45  # of a job that ends in 2 s where nothing stalls
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
HANGING = str(PROGRAMS.parent / "hangbench" / "cases" / "stalled_in_own_code.py")
PROGRAM = str(PROGRAMS / "ending_on_word.py")

Job = tuple[int, str, float]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[StallingStorage]:
    with stalling_storage(tmp_path) as mounted:
        yield mounted


def finish(process: subprocess.Popen[str], word: Path, before_the_end: Callable[[], None]) -> Job:
    """Give the word once both ranks are in; exit code, error output, seconds from then on."""
    try:
        until(lambda: len(list(word.glob("in-*"))) == 2 or process.poll() is not None, "both ranks")
        before_the_end()
        begun = time.monotonic()
        (word / "go").touch()
        process.wait(LIMIT_S)
        seconds = time.monotonic() - begun
        # whoever reads its output to the end waits for all that could write there
        _, errors = process.communicate(timeout=MOST_AFTER_S)
    finally:
        end(process)
    return process.returncode, errors, seconds


def run_job(folder: Path, run_dir: Path, before_the_end: Callable[[], None]) -> Job:
    """Run a job by `hangcheck run`."""
    folder.mkdir()
    command = [*TORCHRUN, PROGRAM, str(folder)]
    return finish(start_run(folder, command, "--run-dir", str(run_dir)), folder, before_the_end)


def test_a_run_folder_that_stalls_delays_no_end_and_is_said_once(
    tmp_path: Path, storage: StallingStorage
) -> None:
    good = run_job(tmp_path / "good", tmp_path / "good-run", lambda: None)
    code, errors, seconds = run_job(tmp_path / "bad", storage.folder / "run", storage.stall)
    assert code == good[0]
    assert seconds < good[2] + MOST_DELAY_S + NOISE_S, errors
    assert errors.count("does not answer") == 1
    assert "--run-dir" in errors
    storage.answer_again()


def test_after_a_stall_that_ends_nothing_is_missing(
    tmp_path: Path, storage: StallingStorage
) -> None:
    def stall_for_a_while() -> None:
        storage.stall()
        time.sleep(1)
        storage.answer_again()

    code, errors, _ = run_job(tmp_path / "job", storage.folder / "run", stall_for_a_while)
    assert "does not answer" not in errors
    assert verdict_of(storage.folder / "run").verdict == "crashed", code
    for rank in (0, 1):
        entries, gaps = read_journal(storage.folder / "run" / "ranks" / f"rank-{rank}.jsonl")
        assert gaps == ()
        names = [entry["name"] for entry in entries if entry["kind"] == "checkpoint"]
        assert names == ["Script started", *(f"Item {item}" for item in range(20))]


def test_storage_that_is_down_before_the_start_holds_a_run_for_two_seconds(
    tmp_path: Path, storage: StallingStorage
) -> None:
    """One for the check before a run, one for the folder; then a temporary folder serves."""

    def whole_run(run_dir: Path) -> tuple[int, str, float]:
        begun = time.monotonic()
        ended = run(tmp_path, python("raise SystemExit(3)"), "--run-dir", str(run_dir))
        return ended.returncode, ended.stderr, time.monotonic() - begun

    good = whole_run(tmp_path / "good")
    storage.stall()
    code, errors, seconds = whole_run(storage.folder / "run")
    assert code == good[0] == 3
    assert seconds < good[2] + MOST_DELAY_S + NOISE_S, errors
    assert errors.count("is kept in") == 1
    storage.answer_again()


def test_a_hang_is_told_and_ended_while_storage_is_silent(
    tmp_path: Path, storage: StallingStorage
) -> None:
    """Its evidence cannot be saved first; that is no reason to let the job hang."""
    run_dir = storage.folder / "run"
    process = start_run(
        *(tmp_path, [*TORCHRUN, HANGING], "--run-dir", str(run_dir), "--on-hang", "abort"),
        HANGCHECK_IDLE_AFTER="6",
        HANGCHECK_STALL_TIMEOUT="8",
        HANGCHECK_ABORT_GRACE="2",
    )
    try:
        until(lambda: len(list(run_dir.glob("ranks/rank-*"))) == 2, "both journals")
        storage.stall()
        _, errors = process.communicate(timeout=80)
    finally:
        end(process)
    assert process.returncode == 75, errors
    assert "wait_for_shard" in errors
    assert errors.count("does not answer") == 1
    storage.answer_again()


@pytest.mark.parametrize("from_the_start", [False, True])
def test_without_hangcheck_run_ranks_end_as_soon(
    tmp_path: Path, storage: StallingStorage, monkeypatch: pytest.MonkeyPatch, from_the_start: bool
) -> None:
    def job(name: str, run_dir: Path, before_the_end: Callable[[], None]) -> Job:
        word = tmp_path / name
        word.mkdir()
        monkeypatch.setenv("HANGCHECK_RUN_DIR", str(run_dir))
        process = subprocess.Popen(
            [*TORCHRUN, PROGRAM, str(word), "watched"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return finish(process, word, before_the_end)

    good = job("good", tmp_path / "good-run", lambda: None)
    if from_the_start:
        storage.stall()
    stall_now = (lambda: None) if from_the_start else storage.stall
    code, errors, seconds = job("bad", storage.folder / "run", stall_now)
    assert code == good[0]
    assert seconds < good[2] + MOST_DELAY_S + NOISE_S, errors
    assert errors.count("is kept in" if from_the_start else "does not answer") == 1
    storage.answer_again()
