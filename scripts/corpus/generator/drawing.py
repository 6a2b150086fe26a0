"""Draws a number of programs from a seed, and lays them into a folder to be run."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import msgspec
from corpus.generator.writing import Program, program_of
from hangbench.bench import CASES

if TYPE_CHECKING:
    from pathlib import Path

HANGING_OF_THREE = 2
"""Of three programs drawn, so many hang: the shares of what is published, 120 and 60."""


def draw_programs(seed: int, number: int, kind: str, *, quick: bool = False) -> list[Program]:
    """Draw programs, the same for the same seed.

    Args:
        seed: Any integer.
        number: How many.
        kind: ``hanging``, ``healthy``, or ``both``: two hanging ones for each healthy one.
        quick: Only what is called within a minute, or ends soon.
    """
    healthy = [
        kind == "healthy" or (kind == "both" and one % 3 >= HANGING_OF_THREE)
        for one in range(number)
    ]
    return [program_of(seed, one, well, quick) for one, well in enumerate(healthy)]


def lay_out(program: Program, folder: Path) -> Path:
    """Write a program, its truth and what it imports into a folder; returns the script."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"{program.name}.py"
    script.write_text(program.source, encoding="utf-8")
    (folder / f"{program.name}.toml").write_text(_told(program), encoding="utf-8")
    shutil.copy(CASES / "onset.py", folder)
    return script


def _told(program: Program) -> str:
    """The truth without what is not asked; the values of TOML are here those of JSON."""
    told: dict[str, object] = msgspec.to_builtins(program.truth)
    asked = {name: value for name, value in told.items() if value not in (None, [], "", False)}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in asked.items())
