"""Starting real rehearsals of the programs in programs/rehearse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from processes import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

TORCHRUN = ("torchrun", "--nproc_per_node=8")
PYTHON = (sys.executable,)
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes", "8")
LIMIT_S = 1700


def rehearse(
    folder: Path, program: str, launcher: tuple[str, ...], *options: str
) -> subprocess.CompletedProcess[str]:
    script = str(PROGRAMS / "rehearse" / f"{program}.py")
    return subprocess.run(
        [*command(options), *launcher, script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def command(options: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "lightning_hangcheck", "rehearse", "--json", *options, "--"]


def environment() -> dict[str, str]:
    beside = os.path.dirname(sys.executable)  # noqa: PTH120 - where torchrun is installed
    return {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}


def scenes(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {one["scene"]: one for one in json.loads(ran.stdout)["scenes"]}


def is_found(ran: subprocess.CompletedProcess[str], scene: str) -> None:
    assert ran.returncode == 3, ran.stdout + ran.stderr
    played = scenes(ran)
    assert played["as-it-is"]["result"] == "passed"
    assert played[scene]["result"] == "hung"
    assert played[scene]["why"]
