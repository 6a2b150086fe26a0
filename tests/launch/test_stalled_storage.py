"""Storage that stops answering delays neither training nor its end, and one sentence tells of it.

The storage is real, and so is the state D of whoever writes to it. It answers again only after the
job has ended: whoever waited for it would never end.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, end, until
from stalling_storage import StallingStorage, stalling_storage
from watch.launched import start_run, verdict_of

from lightning_hangcheck.rundir import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.real
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
HANGING = [sys.executable, str(PROGRAMS / "standing_still.py"), "queue"]
"""Two ranks, each in ``take_task``."""
PROGRAM = str(PROGRAMS / "ending_on_word.py")
OF_TORCHRUN = 1
"""Its exit code where a rank has failed."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[StallingStorage]:
    with stalling_storage(tmp_path) as mounted:
        yield mounted


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and error output; whoever reads it to its end waits for all that could write."""
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)
    return process.returncode, errors


def finish(
    process: subprocess.Popen[str], word: Path, before_the_end: Callable[[], None]
) -> tuple[int, str]:
    """Give the word once both ranks are in."""
    try:
        until(lambda: len(list(word.glob("in-*"))) == 2 or process.poll() is not None, "both ranks")
        before_the_end()
        (word / "go").touch()
        return ended(process)
    finally:
        end(process)


def run_job(folder: Path, run_dir: Path, before_the_end: Callable[[], None]) -> tuple[int, str]:
    """Run a job by `hangcheck run`."""
    folder.mkdir()
    command = [*TORCHRUN, PROGRAM, str(folder)]
    return finish(start_run(folder, command, "--run-dir", str(run_dir)), folder, before_the_end)


def check_said_once(errors: str) -> None:
    """Where the machine is busy, storage may be found silent before it is stalled."""
    assert errors.count("does not answer") + errors.count("is kept in") == 1, errors


@WHEN_ASKED_FOR
def test_a_run_folder_that_stalls_delays_no_end_and_is_said_once(
    tmp_path: Path, storage: StallingStorage
) -> None:
    code, errors = run_job(tmp_path / "job", storage.folder / "run", storage.stall)
    assert code == OF_TORCHRUN
    check_said_once(errors)
    assert "--run-dir" in errors
    storage.answer_again()


@WHEN_ASKED_FOR
def test_after_a_stall_that_ends_nothing_is_missing(
    tmp_path: Path, storage: StallingStorage
) -> None:
    def stall_for_a_while() -> None:
        storage.stall()
        time.sleep(1)
        storage.answer_again()

    code, errors = run_job(tmp_path / "job", storage.folder / "run", stall_for_a_while)
    kept = re.search(r"run folder (\S+)$", errors, re.MULTILINE)
    assert kept, errors
    assert verdict_of(Path(kept[1])).verdict == "crashed", code
    for rank in (0, 1):
        entries, gaps = read_journal(Path(kept[1]) / "ranks" / f"rank-{rank}.jsonl")
        assert gaps == ()
        names = [entry["name"] for entry in entries if entry["kind"] == "checkpoint"]
        assert names == ["Script started", *(f"Item {item}" for item in range(20))]


def test_a_hang_is_told_and_ended_while_storage_is_silent(
    tmp_path: Path, storage: StallingStorage
) -> None:
    """Its evidence cannot be saved first; that is no reason to let the job hang."""
    run_dir = storage.folder / "run"
    process = start_run(
        *(tmp_path, HANGING, "--run-dir", str(run_dir), "--on-hang", "abort"),
        HANGCHECK_IDLE_AFTER="6",
        HANGCHECK_STALL_TIMEOUT="8",
        HANGCHECK_ABORT_GRACE="2",
    )
    try:
        until(lambda: len(list(run_dir.glob("ranks/rank-*"))) == 2, "both journals")
        storage.stall()
        code, errors = ended(process)
    finally:
        end(process)
    assert code == 75, errors
    assert "take_task" in errors
    check_said_once(errors)
    storage.answer_again()


@WHEN_ASKED_FOR
@pytest.mark.parametrize("from_the_start", [False, True])
def test_without_hangcheck_run_ranks_end_as_soon(
    tmp_path: Path, storage: StallingStorage, monkeypatch: pytest.MonkeyPatch, from_the_start: bool
) -> None:
    monkeypatch.setenv("HANGCHECK_RUN_DIR", str(storage.folder / "run"))
    if from_the_start:
        storage.stall()
    process = subprocess.Popen(
        [*TORCHRUN, PROGRAM, str(tmp_path), "watched"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, errors = finish(process, tmp_path, (lambda: None) if from_the_start else storage.stall)
    assert code == OF_TORCHRUN
    check_said_once(errors)
    storage.answer_again()
