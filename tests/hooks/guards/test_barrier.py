"""A barrier by name, before and after the process group, and with a rank missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hooks.launching import OFFLINE, TORCHRUN, Ended, run_job
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real


def check(job: Ended, place: str) -> dict[int, Any]:
    """The rank that stands was missed, and all met at the end; return what was said of it."""
    assert job.code == 0, job.errors
    missing = job.of("after data")
    assert missing[0]["failed"] == missing[1]["failed"]
    assert "rank 1 of 2 did not come to 'after data' within 2 s" in missing[0]["failed"]
    assert f"rank 0 waited at {place}" in missing[0]["failed"]
    assert [said["failed"] for said in job.of("end").values()] == [None, None]
    assert [said["total"] for said in job.of("sum").values()] == [2.0, 2.0]
    return missing


def test_missing_rank_is_named_with_its_stack_and_the_group_stays_usable(tmp_path: Path) -> None:
    job = run_job(
        tmp_path, "hooks_barrier.py", str(tmp_path), launcher=TORCHRUN, environment=OFFLINE
    )

    assert [said["failed"] for said in job.of("before").values()] == [None, None]
    missing = check(job, "folder ")
    assert f"rank 1: pid {missing[1]['pid']}, main thread:" in missing[0]["failed"]
    assert "prepare_data (" in missing[0]["failed"]


@WHEN_ASKED_FOR
def test_spawned_ranks_without_a_launcher_meet_in_the_store_of_their_group(tmp_path: Path) -> None:
    job = run_job(tmp_path, "hooks_barrier.py", str(tmp_path), environment=OFFLINE)

    missing = check(job, "the process group's store")
    assert "rank 1: no stack: the ranks have no session in common" in missing[0]["failed"]
