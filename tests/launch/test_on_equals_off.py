"""Nothing that a program computes changes by being watched: not one bit of a loss or a weight."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import PROGRAMS
from watch.launched import LONGEST_RUN_S

pytestmark = pytest.mark.real
WAYS = {
    "plain": "torch",
    "adversaries": "torch",
    "compiled": "torch",
    "workers": "torch",
    "lightning": "pytorch_lightning",
    "fabric": "lightning",
    "accelerated": "accelerate",
    "huggingface": "accelerate",
    "generate": "transformers",
}


def test_losses_and_outputs_are_bit_for_bit_the_same(tmp_path: Path) -> None:
    ways = [way for way, needed in WAYS.items() if find_spec(needed) is not None]
    alone = [sys.executable, str(PROGRAMS / "repeatable.py"), *ways]
    hangcheck = str(Path(sys.executable).with_name("hangcheck"))
    watched = [hangcheck, "run", "--run-dir", str(tmp_path / "run"), "--", *alone]
    off, on = printed(alone, tmp_path), printed(watched, tmp_path)
    assert [line[3:] for line in off if line.startswith("== ")] == ways
    assert on == off
    assert (tmp_path / "run" / "ranks").is_dir()


def printed(command: list[str], folder: Path) -> list[str]:
    """What a program prints on its standard output, in lines."""
    quiet = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_RUN_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
