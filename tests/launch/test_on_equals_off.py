"""Nothing that a program computes changes by being watched: not one bit of a loss or a weight."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import PROGRAMS

TIME_LIMIT_S = 180
pytestmark = [pytest.mark.real, pytest.mark.timeout(3 * TIME_LIMIT_S)]
NEEDS = {
    "lightning": "pytorch_lightning",
    "plain": "torch",
    "accelerated": "accelerate",
    "huggingface": "accelerate",
    "generate": "transformers",
    "workers": "torch",
}


@pytest.mark.parametrize("kind", NEEDS)
def test_losses_and_outputs_are_bit_for_bit_the_same(kind: str, tmp_path: Path) -> None:
    if find_spec(NEEDS[kind]) is None:
        pytest.skip(f"{NEEDS[kind]} is not installed")
    alone = [sys.executable, str(PROGRAMS / "repeatable.py"), kind]
    hangcheck = str(Path(sys.executable).with_name("hangcheck"))
    watched = [hangcheck, "run", "--run-dir", str(tmp_path / "run"), "--", *alone]
    off, on = printed(alone, tmp_path), printed(watched, tmp_path)
    assert len(off) >= 2
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
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
