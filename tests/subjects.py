"""Runs before they start, for tests of what is checked then."""

from __future__ import annotations

from pathlib import Path

from lightning_hangcheck.doctor.check import Subject


def subject(command: str = "", run_dir: Path = Path("runs"), **environment: str) -> Subject:
    """A run by its command line and the variables that matter."""
    return Subject(command=tuple(command.split()), environment=environment, run_dir=run_dir)


def saving(checkpoints: object, *expect: str) -> Subject:
    """A run that saves somewhere."""
    return Subject(
        environment={}, run_dir=Path("runs"), checkpoints=str(checkpoints), expect=expect
    )
