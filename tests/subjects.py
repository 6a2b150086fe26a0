"""Runs before they start, for tests of what is checked then."""

from __future__ import annotations

from pathlib import Path

from lightning_hangcheck.doctor.check import Subject


def subject(command: str = "", run_dir: Path = Path("runs"), **environment: str) -> Subject:
    """A run by its command line and the variables that matter."""
    return Subject(command=tuple(command.split()), environment=environment, run_dir=run_dir)


def loading(loads: object, backbone: object = None, **environment: str) -> Subject:
    """A run that loads a checkpoint into a model, or a model alone."""
    return Subject(
        environment=environment,
        run_dir=Path("runs"),
        loads=() if loads is None else (str(loads),),
        backbone=None if backbone is None else str(backbone),
    )


def saving(checkpoints: object, *expect: str) -> Subject:
    """A run that saves somewhere."""
    return Subject(
        environment={}, run_dir=Path("runs"), checkpoints=str(checkpoints), expect=expect
    )
