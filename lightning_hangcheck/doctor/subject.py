"""What is examined: the run that somebody is about to start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from lightning_hangcheck.doctor.launching.launch import Launch, read_launch
from lightning_hangcheck.planning.plan import Extra

DEPTH = 3
"""Folders: run, step and part of a checkpoint."""


class Subject(Struct, frozen=True, kw_only=True):
    """A run before it starts.

    Attributes:
        command: As it would stand behind `hangcheck run --`; empty where none was given.
        environment: That the ranks will have.
        run_dir: Where the run will be recorded.
        checkpoints: Where it will save, as fsspec names places; None where nobody says.
        depth: How many folders deep that place is looked at.
        expect: Patterns of files that must be there, each by its path from there.
        needs: Files and folders that it reads.
        loads: Checkpoints that it loads, each a file or folder.
        backbone: The model that loads them: folder, file, or name in the hub's cache.
        extras: What is kept in memory beside that model.
        fresh_minutes: Age above which these are too old; None where age does not matter.
    """

    command: tuple[str, ...] = ()
    environment: Mapping[str, str]
    run_dir: Path
    checkpoints: str | None = None
    depth: int = DEPTH
    expect: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()
    backbone: str | None = None
    extras: tuple[Extra, ...] = ()
    fresh_minutes: float | None = None

    @property
    def launch(self) -> Launch:
        """What the command starts, as far as its words and the environment tell."""
        return read_launch(self.command, self.environment)
