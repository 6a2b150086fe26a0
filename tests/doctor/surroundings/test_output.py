"""Output that is seen at once, and output that is not."""

from __future__ import annotations

import os
import pty
from typing import TYPE_CHECKING

import pytest
from subjects import subject

from lightning_hangcheck.doctor.surroundings import output_buffering

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    yield writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def terminal() -> Iterator[int]:
    outer, inner = pty.openpty()
    yield inner
    os.close(outer)
    os.close(inner)


def test_a_pipe_keeps_lines_back(pipe: int) -> None:
    (check,) = output_buffering(subject("python train.py"), descriptor=pipe)
    assert check.status == "warning"
    assert "a pipe" in check.sentence
    assert check.remedy == "export PYTHONUNBUFFERED=1"


@pytest.mark.parametrize(
    ("command", "variables"),
    [("python train.py", {"PYTHONUNBUFFERED": "1"}), ("python -u train.py", {})],
)
def test_python_can_be_told_to_let_go(pipe: int, command: str, variables: dict[str, str]) -> None:
    (check,) = output_buffering(subject(command, **variables), descriptor=pipe)
    assert check.status == "ok"


def test_a_terminal_shows_each_line(terminal: int) -> None:
    (check,) = output_buffering(subject("python train.py"), descriptor=terminal)
    assert check.status == "ok"


def test_slurm_writes_to_a_log_wherever_doctor_runs(terminal: int) -> None:
    (check,) = output_buffering(subject("srun python train.py"), descriptor=terminal)
    assert check.status == "warning"
