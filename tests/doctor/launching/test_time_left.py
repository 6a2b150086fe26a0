"""SLURM's end of the job against the clock."""

from __future__ import annotations

import pytest
from subjects import subject

from lightning_hangcheck.doctor.launching.time_left import time_left

NOW = 1_800_000_000.0


@pytest.mark.parametrize(("left", "status"), [(300, "warning"), (7200, "ok"), (-5, "warning")])
def test_little_time_is_a_warning(left: int, status: str) -> None:
    run = subject("python a.py", SLURM_JOB_END_TIME=str(int(NOW) + left), SLURM_JOB_ID="7")
    (check,) = time_left(run, NOW)
    assert check.status == status
    assert ("JobId=7" in check.remedy) == (status == "warning")


def test_without_slurm_nothing_is_said() -> None:
    assert time_left(subject("python a.py"), NOW) == ()
