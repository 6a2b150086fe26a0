"""py-spy on a real process, and why it cannot read one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.seeing import stacks_readable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.real
def test_stacks_are_readable_here() -> None:
    assert [check.status for check in stacks_readable(subject(), time_limit_s=30.0)] == ["ok"]


def test_without_py_spy_stacks_are_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    (check,) = stacks_readable(subject(), time_limit_s=30.0)
    assert check.status == "failed"
    assert check.remedy == "pip install py-spy"


def test_a_python_that_does_not_start_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("no program\0")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (check,) = stacks_readable(subject(), time_limit_s=30.0)
    assert check.status == "warning"
    assert "cannot be started" in check.sentence


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
