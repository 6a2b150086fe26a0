"""Storage that stops answering delays neither training nor its end, and one sentence tells of it.

The storage is real, and so is the state D of whoever writes to it. It answers again only after the
job has ended: whoever waited for it would never end.
"""

from __future__ import annotations

import re
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
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.real
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
HANGING = [sys.executable, str(PROGRAMS / "standing_still.py")]
"""Two ranks, each in ``take_task``."""
PROGRAM = str(PROGRAMS / "ending_on_word.py")


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


@WHEN_ASKED_FOR
def test_after_a_stall_that_ends_nothing_is_missing(
    tmp_path: Path, storage: StallingStorage
) -> None:
    run_dir, word = str(storage.folder / "run"), tmp_path / "job"
    word.mkdir()
    process = start_run(word, [*TORCHRUN, PROGRAM, str(word)], "--run-dir", run_dir)
    try:
        until(lambda: len(list(word.glob("in-*"))) == 2, "both ranks")
        storage.stall()
        time.sleep(1)
        storage.answer_again()
        (word / "go").touch()
        code, errors = ended(process)
    finally:
        end(process)
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
    # a busy machine may find storage silent before it is stalled
    assert errors.count("does not answer") + errors.count("is kept in") == 1, errors
    storage.answer_again()
