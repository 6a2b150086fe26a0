"""A watched run tells the ledger by itself what it came to."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.ledger import book
from lightning_hangcheck.ledger.records import Run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
STALLS = """
import time
import lightning_hangcheck as hc
hc.beat()
time.sleep(7)
for _ in range(80):
    hc.beat()
    time.sleep(0.05)
"""


def watched(folder: Path, code: str, *options: str, **environment: str) -> int:
    command = [sys.executable, "-m", "lightning_hangcheck", "run", *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=folder, capture_output=True, timeout=120, check=False,
        env={**os.environ, "HANGCHECK_SUSPECT_OUTSIDE_AFTER": "3", **environment},
    )  # fmt: skip
    return done.returncode


def test_a_run_is_kept_with_its_stalls_and_what_they_cost(tmp_path: Path) -> None:
    assert watched(tmp_path, STALLS) == 0
    (line,) = book.read(tmp_path / "hangcheck_runs" / "ledger.jsonl").lines
    assert isinstance(line, Run)
    assert (line.verdict, line.exit_code, line.ranks) == ("finished", 0, 1)
    assert line.duration_s >= 8
    (stall,) = line.stalls
    assert stall.verdict == "suspect"
    assert 3 <= stall.seconds <= line.duration_s
    assert stall.rank_hours == pytest.approx(stall.seconds / 3600, abs=1e-6)


def test_a_run_folder_that_was_named_gets_nothing_beside_it(tmp_path: Path) -> None:
    assert watched(tmp_path, "raise SystemExit(4)", "--run-dir", "mine") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    watched(tmp_path, "pass", "--run-dir", "other", "--ledger", "ledger.jsonl")
    (line,) = book.read(tmp_path / "ledger.jsonl").lines
    assert isinstance(line, Run)
    assert line.run_id == "other"
