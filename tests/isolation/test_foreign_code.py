"""Nothing that lies in the working folder, or that PYTHONPATH names, runs in our own processes."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, PROGRAMS, end
from watch.launched import start_run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
NAMES = (
    *("json", "msgspec", "networkx", "psutil", "pynvml", "queue", "runpy", "sitecustomize"),
    *("tomli", "usercustomize"),
)
STOPS = "import queue, os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
HASTE = {"HANGCHECK_PROVEN_AFTER": "3", "HANGCHECK_ABORT_GRACE": "1"}
OURS = ("lightning_hangcheck.watch.sidecar", "lightning_hangcheck.look.gpu")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A working folder in which somebody else left modules of many names."""
    folder = tmp_path / "shared-by-all"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(PROGRAMS / "foreign_module.py", folder / f"{name}.py")
    return folder


def importers(foreign: Path) -> list[str]:
    """Who imported what; somebody must have, or this test shows nothing."""
    said = (foreign / "imported-by").read_text().splitlines()
    assert said, "the foreign modules tell of nothing"
    return said


def of_our_own(said: list[str]) -> list[str]:
    return [line for line in said if any(name in line for name in OURS)]


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
