"""SLURM's end of the job against the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from doctor.launching.runs import run
from subjects import subject

from lightning_hangcheck.doctor.launching import time_left
from lightning_hangcheck.ledger import book

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0


@pytest.mark.parametrize(("left", "status"), [(300, "warning"), (7200, "ok"), (-5, "warning")])
def test_little_time_is_a_warning(left: int, status: str) -> None:
    run = subject("python a.py", SLURM_JOB_END_TIME=str(int(NOW) + left), SLURM_JOB_ID="7")
    (check,) = time_left(run, now=NOW)
    assert check.status == status
    assert ("JobId=7" in check.remedy) == (status == "warning")


def test_without_slurm_nothing_is_said() -> None:
    assert time_left(subject("python a.py"), now=NOW) == ()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A run of 100 steps took ten minutes."""
    file = tmp_path / "ledger.jsonl"
    book.append(file, run("python a.py --max_steps 100", 600.0))
    return file


@pytest.mark.parametrize(("steps", "status"), [(100, "ok"), (5400, "warning")])
def test_the_pace_of_an_earlier_run_is_set_against_the_time(
    ledger: Path, steps: int, status: str
) -> None:
    command = f"python a.py --max_steps {steps}"
    run_ = subject(
        command, SLURM_JOB_END_TIME=str(int(NOW) + 6 * 3600), HANGCHECK_LEDGER=str(ledger)
    )
    (check,) = time_left(run_, now=NOW)
    assert check.status == status
    if status == "warning":
        assert "this run takes 9 h 00 min, but SLURM ends this job in 6 h 00 min" in check.sentence
        assert "--time=10:48:00" in check.remedy


@pytest.mark.parametrize(("took", "status"), [(60.0, "ok"), (7 * 3600.0, "warning")])
def test_an_earlier_run_that_was_not_done_in_time_is_told(
    tmp_path: Path, took: float, status: str
) -> None:
    book.append(tmp_path / "ledger.jsonl", run("python a.py", took, "crashed"))
    environment = {
        "SLURM_JOB_END_TIME": str(int(NOW) + 6 * 3600),
        "HANGCHECK_LEDGER": str(tmp_path / "ledger.jsonl"),
    }
    (check,) = time_left(subject("python a.py", **environment), now=NOW)
    assert (check.status, "was not done after" in check.sentence) == (status, status == "warning")


def test_without_a_ledger_only_the_time_is_told(tmp_path: Path) -> None:
    environment = {
        "SLURM_JOB_END_TIME": str(int(NOW) + 7200),
        "HANGCHECK_LEDGER": str(tmp_path / "none"),
    }
    (check,) = time_left(subject("python a.py", **environment), now=NOW)
    assert (check.status, check.sentence) == ("ok", "SLURM ends this job in 2 h 00 min")
