"""A rank that is slow and does not hang: named at the end, in the run folder, and in the logs."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS
from watch.launched import run

from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.rundir.layout import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
TORCHRUN = ("torchrun", "--nproc_per_node=2")


def test_a_rank_whose_loader_is_slow_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, [*TORCHRUN, str(PROGRAMS / "straggling.py"), "csv"])
    assert ended.returncode == 0, ended.stderr
    finished, steps, where, _trend = ended.stderr.splitlines()[-4:]
    assert finished.startswith("FINISHED")
    assert "slowest is rank 1: " in steps
    assert "rank 1: loader 0.1" in where
    kept = read_saved_run(RunFolder(tmp_path / "run")).case
    assert stragglers_lines(find_stragglers(kept))[0] == steps
    (logged,) = tmp_path.glob("logged/**/metrics.csv")
    with logged.open() as file:
        rows = [row for row in csv.DictReader(file) if row["hangcheck/step_time"]]
    assert len(rows) >= 3, "every eighth of forty steps, but for the first"
    assert {row["hangcheck/slowest_rank"] for row in rows} == {"1"}
    assert {row["hangcheck/state"] for row in rows} == {"0"}
    assert all(float(row["hangcheck/straggler_ratio"]) > 1.5 for row in rows)
    assert all(float(row["hangcheck/step_time"]) >= 0.15 for row in rows)
