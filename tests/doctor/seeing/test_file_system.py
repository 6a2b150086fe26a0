"""The disk of the run folder and the clock, well and not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from subjects import subject

from lightning_hangcheck.doctor.seeing import (
    FIRST_RELEASE,
    Times,
    clock,
    judge_clock,
    judge_disk,
    run_folders_disk,
)

FOLDER = Path("/data/runs")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "tmpfs"])
def test_disks_that_lose_evidence_are_a_warning(kind: str) -> None:
    check = judge_disk(FOLDER, kind)
    assert check.status == "warning"
    assert kind in check.sentence
    assert "--run-dir" in check.remedy


@pytest.mark.parametrize("kind", ["ext4", "xfs", "overlay", "fuseblk", "unknown"])
def test_local_disks_are_fine(kind: str) -> None:
    assert judge_disk(FOLDER, kind).status == "ok"


def test_the_kernel_names_the_file_system() -> None:
    (check,) = run_folders_disk(subject(run_dir=Path("/proc/self")))
    assert check.sentence.endswith(" is on proc")


def test_a_folder_that_is_not_there_yet_has_the_disk_above_it(tmp_path: Path) -> None:
    (above,) = run_folders_disk(subject(run_dir=tmp_path))
    (check,) = run_folders_disk(subject(run_dir=tmp_path / "a" / "b"))
    assert check.sentence.split()[-1] == above.sentence.split()[-1] != "unknown"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("here", "there", "status"),
    [
        (FIRST_RELEASE - 1, FIRST_RELEASE - 1, "failed"),
        (FIRST_RELEASE + 9, FIRST_RELEASE + 90, "warning"),
        (FIRST_RELEASE + 9, FIRST_RELEASE + 9.5, "ok"),
    ],
)
def test_a_clock_is_judged_by_the_file_system(here: float, there: float, status: str) -> None:
    check = judge_clock(Times(here, there))
    assert check.status == status
    assert bool(check.remedy) == (status != "ok")


def test_the_clock_of_this_machine_is_right_and_nothing_stays(tmp_path: Path) -> None:
    assert time.time() > FIRST_RELEASE
    assert [check.status for check in clock(subject(run_dir=tmp_path))] == ["ok"]
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_cannot_be_compared_is_not_called_right() -> None:
    (check,) = clock(subject(run_dir=Path("/proc/self")))
    assert check.status == "warning"
    assert "could not be compared" in check.sentence
