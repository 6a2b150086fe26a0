"""A measured figure, and how a program of this folder tells its figures."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        name: What was measured, as the documentation calls it.
        value: None where it could not be measured; ``note`` then says why.
        target: The promise, in words; empty where there is none.
    """

    name: str
    value: float | None
    unit: str
    target: str = ""
    note: str = ""


def tell(figures: Sequence[Figure], *, as_json: bool) -> None:
    """Print figures: as a JSON list for scripts/benchmark, or as a table for people."""
    if as_json:
        print(json.dumps([asdict(figure) for figure in figures]))
    else:
        print(render_table(figures))


def render_table(figures: Sequence[Figure]) -> str:
    """Render figures as a Markdown table, as docs/performance.md holds it."""
    lines = ["| figure | target | measured | note |", "|---|---|---|---|"]
    for figure in figures:
        measured = "-" if figure.value is None else f"{figure.value:.3g} {figure.unit}"
        lines.append(f"| {figure.name} | {figure.target} | {measured} | {figure.note} |")
    return "\n".join(lines)


def describe_machine() -> str:
    """Name what the figures depend on, in one line."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        f"{os.cpu_count()} cores of {_processor()}",
        f"{memory_gib:.0f} GiB",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{name} {_installed(name)}" for name in ("torch", "pytorch-lightning", "py-spy")),
    ]
    return ", ".join(parts)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
