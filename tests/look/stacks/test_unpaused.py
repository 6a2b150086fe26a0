"""What py-spy reads of a process that runs on, and what is said where it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, until

from lightning_hangcheck.look import py_spy
from lightning_hangcheck.look.proc import slept_s
from lightning_hangcheck.look.py_spy import (
    MOST_DUMPS,
    PySpyFailed,
    PySpyLate,
    dump,
    python_stacks,
    read_threads,
)
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from processes import StartProgram


NOW = {"name": "works", "filename": "/home/ada/train.py", "line": 3, "is_shim_entry": False}

OUTERMOST = {"name": "<module>", "filename": "/home/ada/train.py", "line": 9, "is_shim_entry": True}

WHOLE = {"os_thread_id": 7, "active": True, "frames": [NOW, OUTERMOST]}

WITHOUT_ITS_OUTER_END = {"os_thread_id": 7, "active": True, "frames": [NOW]}

OF_FREED_MEMORY = {
    "os_thread_id": 7,
    "active": True,
    "frames": [{**NOW, "name": "\0\x13wo\0"}, OUTERMOST],
}

LOST = {"os_thread_id": 7, "active": True, "frames": []}

IN_NATIVE_CODE = {"os_thread_id": 8, "active": True, "frames": []}


def answering(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: list[dict[str, object]] | None
) -> Path:
    """A py-spy that gives these answers one after another, an error for None."""
    for number, answer in enumerate(answers, 1):
        (folder / str(number)).write_text("" if answer is None else json.dumps(answer))
    program = folder / "py-spy"
    program.write_text(
        f"#!/bin/sh\nPATH=/usr/bin:/bin\ncd {folder}\necho >> asked\nn=$(wc -l < asked)\n"
        "[ -s $n ] || { echo 'Error: Failed to copy PyCodeObject' >&2; exit 1; }\ncat $n\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(py_spy, "find_py_spy", lambda: program)
    return program


def asked(folder: Path) -> int:
    """How often it was asked."""
    return len((folder / "asked").read_text().splitlines())


@pytest.mark.parametrize(
    "answers",
    [
        (None, None, [WHOLE]),
        ([WITHOUT_ITS_OUTER_END], [WITHOUT_ITS_OUTER_END], [WHOLE]),
        ([OF_FREED_MEMORY], [OF_FREED_MEMORY], [WHOLE]),
        ([LOST], [WHOLE]),
        # native code may call Python in a thread of its own: believed the second time
        ([WHOLE, IN_NATIVE_CODE], [WHOLE, IN_NATIVE_CODE]),
    ],
)
def test_what_is_torn_is_read_again(
    program: StartProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: tuple[list[dict[str, object]] | None, ...],
) -> None:
    answering(tmp_path, monkeypatch, *answers)
    thread, *_ = read_threads(program("sleeping.py").pid, PATIENCE_S)
    assert [frame.name for frame in thread.frames] == ["works", "<module>"]
    assert asked(tmp_path) == len(answers)


def test_what_stays_torn_is_left_out_after_three_times(
    program: StartProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(tmp_path, monkeypatch, *[[WITHOUT_ITS_OUTER_END]] * (MOST_DUMPS + 1))
    with pytest.raises(PySpyFailed, match="torn"):
        read_threads(program("sleeping.py").pid, PATIENCE_S)
    assert asked(tmp_path) == MOST_DUMPS


def test_all_attempts_share_one_time_limit(
    program: StartProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(tmp_path, monkeypatch).write_text(
        f"#!/bin/sh\necho >> {tmp_path}/asked\n/bin/sleep 0.4\nexit 1\n"
    )
    with pytest.raises((PySpyFailed, PySpyLate)):
        read_threads(program("sleeping.py").pid, 0.5)
    assert asked(tmp_path) <= 2 < MOST_DUMPS


@pytest.mark.real
def test_nothing_is_paused(program: StartProgram) -> None:
    """A pause shows: a thread that sleeps is woken by it."""
    running = program("sleeping.py")
    until(lambda: (slept_s(running.pid) or 0.0) > 0.2, "it to sleep")
    before = switches(running.pid)
    for _ in range(5):
        read_threads(running.pid, PATIENCE_S)
    assert switches(running.pid) == before
    dump(running.pid, PATIENCE_S, "--native")
    assert switches(running.pid) != before


def switches(pid: int) -> list[str]:
    """How often its main thread gave up its processor, of its own will or not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if "ctxt_switches" in line]


@WHEN_ASKED_FOR
@pytest.mark.real
def test_threads_that_python_does_not_number_have_the_kernels_ids_all_the_same(
    program: StartProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of Python 3.10, where py-spy knows no ids without pausing the process."""
    running = program("many_threads.py", "3")
    known = {one.thread_name: one.os_thread_id for one in read_threads(running.pid, PATIENCE_S)}
    told = json.loads(dump(running.pid, PATIENCE_S))
    answering(tmp_path, monkeypatch, [{**one, "os_thread_id": None} for one in told])
    found = {one.thread_name: one.os_thread_id for one in read_threads(running.pid, PATIENCE_S)}
    tids = {int(task.name) for task in Path(f"/proc/{running.pid}/task").iterdir()}
    assert found == known
    assert set(found.values()) == tids


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
    gone = subprocess.Popen(["/bin/true"])
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


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            r"printf 'Error: No stacks\n\nCaused by:\n  0: out\n  1: the moon: full\n' >&2; exit 1",
            "py-spy: No stacks (the moon: full)",
        ),
        ("exit 7", "py-spy: it ended with 7"),
        (
            """echo '[{"threads": 3}]'""",
            "py-spy's answer is of another version than 0.4: Object missing required field `frames`"
            " - at `$[0]`; pip install -U py-spy",
        ),
    ],
)
def test_a_failure_is_told_in_one_line_with_its_innermost_cause(
    beside_python: Path, script: str, why: str
) -> None:
    install(beside_python, script)
    assert why_no_stack(psutil.Process().pid) == why


def test_a_program_that_cannot_be_started_says_why(beside_python: Path) -> None:
    (beside_python / "py-spy").write_text("#!/nowhere/at/all\n")
    (beside_python / "py-spy").chmod(0o700)
    assert "cannot be started (No such file or directory)" in why_no_stack(psutil.Process().pid)


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
