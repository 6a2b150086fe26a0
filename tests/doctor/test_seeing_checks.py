"""Would a hang be seen here: stacks, Python, shared memory, the run folder, its disk, the clock."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from subjects import subject

from lightning_hangcheck.doctor.seeing_checks import (
    clock,
    python_version,
    run_folder_writable,
    run_folders_disk,
    shared_memory_usable,
    stacks_readable,
)
from lightning_hangcheck.session.session import SHARED_MEMORY


def test_without_py_spy_stacks_are_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = stacks_readable(subject(), time_limit_s=30.0)
    assert check.status == "failed"
    assert check.remedy == "pip install py-spy"


def test_a_python_that_starts_too_slowly_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    (check,) = stacks_readable(subject(), time_limit_s=0.05)
    assert check.status == "warning"
    assert "too long to start" in check.sentence


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9), "failed"), ((3, 10), "ok"), ((3, 14), "ok"), ((3, 15), "warning")],
)
def test_pythons_outside_the_known_range_are_told(version: tuple[int, int], status: str) -> None:
    (check,) = python_version(subject(), version=version)
    assert check.status == status
    assert bool(check.remedy) == (status != "ok")


def test_a_folder_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    run = subject(run_dir=tmp_path / "a" / "b")
    assert [check.status for check in run_folder_writable(run)] == ["ok"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_below_a_file_fails_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (check,) = run_folder_writable(subject(run_dir=tmp_path / "file"))
    assert check.status == "failed"
    assert "Not a directory" in check.sentence
    assert "--run-dir" in check.remedy


def test_storage_that_does_not_answer_fails_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(2))  # as a slow network disk does
    (check,) = run_folder_writable(subject(run_dir=tmp_path), time_limit_s=0.05)
    assert check.status == "failed"
    assert "no answer within 0.05 s" in check.sentence


def test_shared_memory_is_usable_here_and_nothing_stays_there() -> None:
    (check,) = shared_memory_usable(subject())
    assert check.status in ("ok", "warning")
    assert not list(SHARED_MEMORY.glob("hangcheck-doctor-*"))


def test_unusable_shared_memory_names_the_fallback_and_the_remedy(tmp_path: Path) -> None:
    (check,) = shared_memory_usable(subject(), folder=tmp_path / "absent")
    assert check.status == "warning"
    assert "heartbeats go through files" in check.sentence
    assert "--shm-size" in check.remedy


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        *((one, "warning") for one in ("nfs4", "lustre", "fuse.sshfs", "tmpfs")),
        *((one, "ok") for one in ("ext4", "xfs", "overlay", "fuseblk")),
    ],
)
def test_disks_that_lose_evidence_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: str
) -> None:
    disk = SimpleNamespace(mountpoint=str(tmp_path), fstype=kind)
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [disk])
    (check,) = run_folders_disk(subject(run_dir=tmp_path))
    assert (check.status, f"is on {kind}" in check.sentence) == (status, True)
    assert ("--run-dir" in check.remedy) is (status == "warning")


def test_a_folder_that_is_not_there_yet_has_the_disk_above_it(tmp_path: Path) -> None:
    (above,) = run_folders_disk(subject(run_dir=tmp_path))
    (check,) = run_folders_disk(subject(run_dir=tmp_path / "a" / "b"))
    assert check.sentence.split()[-1] == above.sentence.split()[-1] != "unknown"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("ahead_s", "status"), [(-1e9, "failed"), (90.0, "warning"), (0.5, "ok")])
def test_a_clock_is_judged_by_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float, status: str
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead_s)
    (check,) = clock(subject(run_dir=tmp_path))
    assert (check.status, bool(check.remedy)) == (status, status != "ok")


def test_a_clock_that_cannot_be_compared_is_not_called_right() -> None:
    (check,) = clock(subject(run_dir=Path("/proc/self")))
    assert check.status == "warning"
    assert "could not be compared" in check.sentence
