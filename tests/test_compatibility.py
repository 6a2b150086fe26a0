"""Real tests pass with the oldest and newest Python and torch: each environment is built for them.

It takes minutes and some gigabytes: RUN_LONG_TESTS=1 runs it for each of these Pythons on PATH.
TORCH_PIP_ARGS and pip's own variables work as in scripts/test.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from long_tests import LONG_TEST

import lightning_hangcheck

pytestmark = [*LONG_TEST]
ROOT = Path(__file__).parents[1]
PACKAGE = Path(lightning_hangcheck.__file__).parent
FOR_TESTS = ("hypothesis", "jsonschema", "numpy", "pytest>=8.2", "pytest-timeout", "setuptools")
TESTED = (
    "tests/attach/test_attach_recorded.py",
    "tests/cli/test_attach_command.py",
    "tests/hooks/rendezvous/test_who_meets.py",
    "tests/hooks/zero_code/test_zero_code.py",
    "tests/look/test_source.py",
    "tests/look/test_stacks.py",
    "tests/look/test_waits.py",
)
NEEDS_OTHERS_TO_READ = "tests/cli/test_attach_command.py::test_a_process_of_another_user"
"""No other user may read an environment in a folder of pytest's."""
NEEDS_RECORD = (
    "tests/hooks/zero_code/test_zero_code.py"
    "::test_the_pulse_starts_torchs_server_and_ends_the_startup"
)
"""torch 2.5 keeps no record of gloo's collectives; see docs/compatibility.md."""


def runs(python: str) -> bool:
    """Whether there is such a program; a version manager's own may only say where it would be."""
    try:
        asked = subprocess.run([python, "--version"], capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return False
    return asked.returncode == 0


def environment(python: str, torch: str, folder: Path) -> Path:
    """Make one with this torch, the package as it is here and what that and its tests need."""
    subprocess.run([python, "-m", "venv", folder], check=True, timeout=120)
    made = folder / "bin" / "python"
    pip = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    project = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
    chosen = shlex.split(os.environ.get("TORCH_PIP_ARGS", ""))
    subprocess.run([*pip, *chosen, torch], check=True, timeout=1200)
    subprocess.run([*pip, *project["dependencies"], *FOR_TESTS], check=True, timeout=300)
    (modules,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(PACKAGE, modules / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return made


@pytest.mark.parametrize(
    ("python", "torch", "lacking"),
    [
        ("python3.10", "torch==2.5.1", [NEEDS_RECORD]),
        ("python3.12", "torch==2.5.1", [NEEDS_RECORD]),
        ("python3.13", "torch", []),
        ("python3.14", "torch", []),
    ],
)
def test_real_tests_pass_there(python: str, torch: str, lacking: list[str], tmp_path: Path) -> None:
    if not runs(python):
        pytest.skip(f"{python} is not on PATH")
    made = environment(python, torch, tmp_path / "environment")
    plain = {name: value for name, value in os.environ.items() if name != "RUN_LONG_TESTS"}
    command = [made, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTED]
    ran = subprocess.run(
        [*command, *(f"--deselect={one}" for one in (NEEDS_OTHERS_TO_READ, *lacking))],
        cwd=ROOT,
        env={**plain, "PATH": f"{made.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-10_000:]
