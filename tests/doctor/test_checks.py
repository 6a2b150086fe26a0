"""Each check on a machine that is well and on one that is not."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from lightning_hangcheck.doctor.environment import debug_settings, python_version
from lightning_hangcheck.doctor.stacks_readable import stacks_readable
from lightning_hangcheck.doctor.storage import run_folder_writable, shared_memory_usable
from lightning_hangcheck.session.session import SHARED_MEMORY


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 9), "failed"), ((3, 10), "ok"), ((3, 14), "ok"), ((3, 15), "warning")],
)
def test_pythons_outside_the_known_range_are_told(version: tuple[int, int], status: str) -> None:
    check = python_version(version)
    assert check.status == status
    assert bool(check.remedy) == (status != "ok")


def test_this_python_will_do() -> None:
    assert python_version().sentence == "Python {}.{}".format(*sys.version_info[:2])


def test_a_folder_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    assert run_folder_writable(tmp_path / "a" / "b").status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_below_a_file_fails_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    check = run_folder_writable(tmp_path / "file")
    assert check.status == "failed"
    assert "Not a directory" in check.sentence
    assert "--run-dir" in check.remedy


def test_a_folder_that_takes_no_files_fails() -> None:
    check = run_folder_writable(Path("/proc/self"))
    assert check.status == "failed"
    assert "/proc/self cannot be written" in check.sentence


def test_storage_that_does_not_answer_fails_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(2))  # as a slow network disk does
    check = run_folder_writable(tmp_path, time_limit_s=0.05)
    assert check.status == "failed"
    assert "no answer within 0.05 s" in check.sentence


def test_shared_memory_is_usable_here_and_nothing_stays_there() -> None:
    assert shared_memory_usable().status in ("ok", "warning")
    assert not list(SHARED_MEMORY.glob("hangcheck-doctor-*"))


def test_unusable_shared_memory_names_the_fallback_and_the_remedy(tmp_path: Path) -> None:
    check = shared_memory_usable(tmp_path / "absent")
    assert check.status == "warning"
    assert "heartbeats go through files" in check.sentence
    assert "--shm-size" in check.remedy


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "crashes DDP on gloo"),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", "4.4 times"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "without end"),
        ("NCCL_ASYNC_ERROR_HANDLING", "0", "without end"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1", "watchdog"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "100", "stall timeout of 300 s"),
        ("HANGCHECK_DISABLE", "1", "switches everything off"),
        ("HANGCHECK_STALL_TIMEOUT", "soon", "the defaults apply"),
    ],
)
def test_a_setting_that_is_in_the_way_is_named_with_a_remedy(
    variable: str, value: str, named: str
) -> None:
    (check,) = debug_settings({variable: value})
    assert check.status == "warning"
    assert variable in check.sentence
    assert named in check.sentence
    assert variable in check.remedy or "HANGCHECK_STALL_TIMEOUT" in check.remedy


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCH_DISTRIBUTED_DEBUG": "INFO"},
        {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "480"},
        {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "never"},
    ],
)
def test_harmless_settings_give_one_ok(environment: dict[str, str]) -> None:
    (check,) = debug_settings(environment)
    assert check.status == "ok"


@pytest.mark.real
def test_stacks_are_readable_here() -> None:
    assert stacks_readable(30.0).status == "ok"


def test_without_py_spy_stacks_are_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    check = stacks_readable(30.0)
    assert check.status == "failed"
    assert check.remedy == "pip install py-spy"


def test_a_python_that_does_not_start_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("no program\0")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    check = stacks_readable(30.0)
    assert check.status == "warning"
    assert "cannot be started" in check.sentence


def test_a_python_that_starts_too_slowly_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    check = stacks_readable(0.05)
    assert check.status == "warning"
    assert "too long to start" in check.sentence
