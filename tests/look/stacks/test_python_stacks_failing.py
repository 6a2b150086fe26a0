"""What is said when py-spy is absent, refused, late, broken, or its target is no Python."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from processes import PROGRAMS, until

from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


@pytest.fixture
def beside_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds this Python's scripts, empty so far, and nothing on PATH."""
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(folder: Path, script: str) -> None:
    """Put a program called py-spy there."""
    fake = folder / "py-spy"
    fake.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    fake.chmod(0o700)


def why_no_stack(pid: int, time_limit_s: float = 20.0) -> str:
    """The reason of the one gap; there must be no stack."""
    stack, gaps = python_stacks(pid, 3, time_limit_s)
    assert stack is None
    (gap,) = gaps
    assert gap == Gap(f"stack of pid {pid}", 3, gap.why, "stack", gap.remedy)
    return gap.reason


def test_without_py_spy_the_gap_says_how_to_get_it(beside_python: Path) -> None:
    why = why_no_stack(psutil.Process().ppid())
    assert why == "py-spy is not installed beside this Python nor on PATH; pip install py-spy"


def test_a_process_that_is_gone_needs_no_py_spy() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert why_no_stack(gone.pid) == "the process has ended"


def test_a_hanging_py_spy_is_killed_with_all_that_it_started(beside_python: Path) -> None:
    install(beside_python, f"sleep 1000 & echo $! > {beside_python}/pid; wait")
    assert why_no_stack(psutil.Process().pid, 1.0) == "py-spy gave no answer within 1 s"
    started = int((beside_python / "pid").read_text())
    until(lambda: not _runs(started), "its child to end")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_complaint_is_told_in_one_line_with_its_innermost_cause(beside_python: Path) -> None:
    complaint = r"Error: No stacks today\n\nCaused by:\n    0: the outer\n    1: the moon: full\n"
    install(beside_python, f"printf '{complaint}' >&2; exit 1")
    assert why_no_stack(psutil.Process().pid) == "py-spy: No stacks today (the moon: full)"


def test_a_silent_failure_tells_the_exit_code(beside_python: Path) -> None:
    install(beside_python, "exit 7")
    assert why_no_stack(psutil.Process().pid) == "py-spy: it ended with 7"


def test_a_py_spy_of_another_version_is_told_from_a_broken_one(beside_python: Path) -> None:
    install(beside_python, """echo '[{"threads": 3}]'""")
    why = why_no_stack(psutil.Process().pid)
    assert "of another version" in why
    assert why.endswith("pip install -U py-spy")


def test_a_program_that_cannot_be_started_says_why(beside_python: Path) -> None:
    (beside_python / "py-spy").write_text("#!/nowhere/at/all\n")
    (beside_python / "py-spy").chmod(0o700)
    assert "cannot be started (No such file or directory)" in why_no_stack(psutil.Process().pid)


@pytest.mark.real
def test_a_process_that_is_no_python_leaves_a_gap() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        until(lambda: psutil.Process(child.pid).name() == "sleep", "the program to start")
        assert why_no_stack(child.pid).startswith("py-spy: ")
    finally:
        child.kill()
        child.wait()


@pytest.mark.real
def test_a_user_who_may_not_look_is_told_what_would_allow_it(program: StartProgram) -> None:
    """As root, the looker becomes another user; otherwise the kernel protects the target."""
    running = program("undumpable.py")
    looker = [sys.executable, str(PROGRAMS / "probing_unprivileged.py"), str(running.pid)]
    output = subprocess.run(looker, capture_output=True, check=True, timeout=120)
    answer = msgspec.json.decode(output.stdout)
    remedies = {gap["what"]: gap["remedy"] for gap in answer["gaps"]}
    assert remedies.keys() == {
        f"stack of pid {running.pid}",
        f"system calls of pid {running.pid}",
        f"bytes read and written by pid {running.pid}",
    }
    assert all("run as" in remedy for remedy in remedies.values())
    assert answer["sample"]["kernel"]["state"] == "S"
    assert answer["sample"]["kernel"]["threads"][0].get("syscall") is None
    assert answer["io"] is None
    assert "another user" in answer["environment"]["why"]
