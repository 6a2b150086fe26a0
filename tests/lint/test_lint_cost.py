"""What a lint costs, in calls of Python functions: these are the same on any machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from lightning_hangcheck.lint.linting import Configuration, lint

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

HEAD = """
import signal
import torch.distributed as dist

signal.signal(signal.SIGTERM, lambda *_: None)
with Join([model]):
    pass
"""
QUIET = """
def work_{number}(rank, batches):
    if rank == 0 and batches:
        print("begins")
    for batch in batches:
        try:
            total = batch.sum() if rank else 0
        except ValueError:
            continue
    return total
"""
MEETING = QUIET.replace("return total", "dist.all_reduce(total)")


def calls_for(folder: Path, function: str, functions: int) -> int:
    """Count the calls that a lint of so many functions in one file makes."""
    text = HEAD + "".join(function.format(number=number) for number in range(functions))
    (folder / "train.py").write_text(text)
    calls = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        lint([folder], Configuration(notes=True), folder)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("function", [QUIET, MEETING])
def test_twice_as_many_functions_cost_twice_as_much(tmp_path: Path, function: str) -> None:
    calls_for(tmp_path, function, 1)  # what is read once in a process
    once, twice = (calls_for(tmp_path, function, many) for many in (100, 200))
    assert twice < 2.1 * once
