"""The run folder and shared memory, on a machine that is well and on one that is not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from subjects import subject

from lightning_hangcheck.doctor.seeing import (
    run_folder_writable,
    shared_memory_usable,
)
from lightning_hangcheck.session.session import SHARED_MEMORY

if TYPE_CHECKING:
    import pytest


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


def test_a_folder_that_takes_no_files_fails() -> None:
    (check,) = run_folder_writable(subject(run_dir=Path("/proc/self")))
    assert check.status == "failed"
    assert "/proc/self cannot be written" in check.sentence


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
