"""Nothing that lies in the working folder, or that PYTHONPATH names, runs in our own processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, end, until
from watch.launched import start_run, verdict_of

import lightning_hangcheck

if TYPE_CHECKING:
    from processes import StartProgram

pytestmark = pytest.mark.real
NAMES = (
    *("json", "msgspec", "networkx", "psutil", "pynvml", "queue", "runpy", "sitecustomize"),
    *("tomli", "usercustomize"),
)
STOPS = "import queue, os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
WATCHED = """
import queue, sys
from lightning_hangcheck.hooks.being_watched import keep_sidecar
from lightning_hangcheck.recorder.lifecycle import current
keep_sidecar(current())
print(current().session.sidecar_file, flush=True)
sys.stdin.read()
"""
HASTE = {"HANGCHECK_PROVEN_AFTER": "3", "HANGCHECK_ABORT_GRACE": "1"}
PACKAGE = Path(str(lightning_hangcheck.__file__)).parent
OURS = ("lightning_hangcheck.watch.sidecar", "lightning_hangcheck.look.gpu")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A working folder in which somebody else left modules of many names."""
    folder = tmp_path / "shared-by-all"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(PROGRAMS / "foreign_module.py", folder / f"{name}.py")
    return folder


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python with nothing installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python"


def importers(foreign: Path) -> list[str]:
    """Who imported what; somebody must have, or this test shows nothing."""
    said = (foreign / "imported-by").read_text().splitlines()
    assert said, "the foreign modules tell of nothing"
    return said


def of_our_own(said: list[str]) -> list[str]:
    return [line for line in said if any(name in line for name in OURS)]


def start_watched(python: Path | str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(WATCHED)
    return subprocess.Popen(
        [str(python), "train.py"],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def sidecar_file_of(job: subprocess.Popen[str]) -> Path:
    assert job.stdout is not None
    return Path(job.stdout.readline().strip())


def test_a_run_in_a_foreign_folder_is_watched_and_runs_none_of_its_code(foreign: Path) -> None:
    """The working folder, and PYTHONPATH names it too."""
    (foreign / "train.py").write_text(STOPS)
    path = {"PYTHONPATH": str(foreign)}
    process = start_run(
        foreign, [sys.executable, "train.py"], "--on-hang", "abort", **HASTE, **path
    )
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        end(process)
    assert process.returncode == 75, errors
    assert verdict_of(foreign / "run").cause == "process_stopped"
    said = importers(foreign)
    assert any("train.py" in line for line in said), "the script's own imports are its own affair"
    assert not of_our_own(said)


@WHEN_ASKED_FOR
def test_a_callbacks_sidecar_runs_no_foreign_code(foreign: Path) -> None:
    job = start_watched(sys.executable, foreign, PYTHONPATH=str(foreign))
    try:
        file = sidecar_file_of(job)
        until(file.exists, "the sidecar")
        job.communicate(timeout=PATIENCE_S)
        until(lambda: not file.parent.exists(), "the sidecar's end")
    finally:
        end(job)
    assert not of_our_own(importers(foreign))


@WHEN_ASKED_FOR
def test_a_visit_from_a_foreign_folder_runs_no_foreign_program(
    foreign: Path, program: StartProgram, bare_python: Path, tmp_path: Path
) -> None:
    job = program("sleeping.py")
    (foreign / "py-spy").write_text(f"#!/bin/sh\ntouch {foreign}/ran\nexit 1\n")
    (foreign / "py-spy").chmod(0o755)
    real = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    assert real is not None
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "py-spy").symlink_to(real)
    ended = subprocess.run(
        [bare_python, "-m", "lightning_hangcheck", "attach", "--pid", str(job.pid)],
        cwd=foreign,
        env={
            **os.environ,
            "PATH": f".::{foreign}:{tmp_path}/tools:/usr/bin:/bin",
            "PYTHONPATH": installed_elsewhere(tmp_path, PACKAGE),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "sleeping.py" in ended.stdout, ended.stderr
    assert not (foreign / "ran").exists()


def installed_elsewhere(tmp_path: Path, *more: Path) -> str:
    """A folder for PYTHONPATH that holds what we need, as `pip install --target` makes it."""
    folder = tmp_path / "target"
    folder.mkdir()
    needed = ("click", "filelock", "markdown_it", "mdurl", "msgspec", "networkx", "psutil")
    for name in (*needed, "pygments", "rich", "wrapt"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            (folder / name).symlink_to(Path(spec.origin).parent)
    for package in more:
        (folder / package.name).symlink_to(package)
    return str(folder)


@WHEN_ASKED_FOR
def test_what_only_pythonpath_and_the_working_folder_hold_is_found_all_the_same(
    foreign: Path, bare_python: Path, tmp_path: Path
) -> None:
    (foreign / PACKAGE.name).symlink_to(PACKAGE)
    path = os.pathsep.join([".", installed_elsewhere(tmp_path)])
    job = start_watched(bare_python, foreign, PYTHONPATH=path)
    try:
        file = sidecar_file_of(job)
        until(file.exists, "the sidecar")
        job.communicate(timeout=PATIENCE_S)
        until(lambda: not file.parent.exists(), "the sidecar's end")
    finally:
        end(job)
    said = importers(foreign)
    assert any("train.py" in line for line in said)
    assert not of_our_own(said)
