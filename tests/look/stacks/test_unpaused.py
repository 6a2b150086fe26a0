"""What is read of a process that runs on: torn stacks are read again, and never shown."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import until

from lightning_hangcheck.look.proc import slept_s
from lightning_hangcheck.look.py_spy import (
    MOST_DUMPS,
    PySpyFailed,
    PySpyLate,
    dump,
    find_py_spy,
    read_threads,
)

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


def answering(folder: Path, *answers: list[dict[str, object]] | None) -> Path:
    """A py-spy that gives these answers one after another, an error for None."""
    for number, answer in enumerate(answers, 1):
        (folder / str(number)).write_text("" if answer is None else json.dumps(answer))
    program = folder / "py-spy"
    program.write_text(
        f"#!/bin/sh\nPATH=/usr/bin:/bin\ncd {folder}\necho >> asked\nn=$(wc -l < asked)\n"
        "[ -s $n ] || { echo 'Error: Failed to copy PyCodeObject' >&2; exit 1; }\ncat $n\n"
    )
    program.chmod(0o700)
    return program


def asked(folder: Path) -> int:
    """How often it was asked."""
    return len((folder / "asked").read_text().splitlines())


@pytest.mark.parametrize("torn", [None, [WITHOUT_ITS_OUTER_END], [OF_FREED_MEMORY], [LOST]])
def test_what_is_torn_is_read_again(
    program: StartProgram, tmp_path: Path, torn: list[dict[str, object]] | None
) -> None:
    py_spy = answering(tmp_path, torn, torn if torn != [LOST] else [WHOLE], [WHOLE])
    (thread,) = read_threads(py_spy, program("sleeping.py").pid, 20.0)
    assert [frame.name for frame in thread.frames] == ["works", "<module>"]


def test_what_stays_torn_is_left_out_after_three_times(
    program: StartProgram, tmp_path: Path
) -> None:
    py_spy = answering(tmp_path, *[[WITHOUT_ITS_OUTER_END]] * (MOST_DUMPS + 1))
    with pytest.raises(PySpyFailed, match="torn"):
        read_threads(py_spy, program("sleeping.py").pid, 20.0)
    assert asked(tmp_path) == MOST_DUMPS


def test_a_thread_that_runs_below_python_is_believed_the_second_time(
    program: StartProgram, tmp_path: Path
) -> None:
    py_spy = answering(tmp_path, *[[WHOLE, IN_NATIVE_CODE]] * 3)
    assert len(read_threads(py_spy, program("sleeping.py").pid, 20.0)) == 2
    assert asked(tmp_path) == 2


def test_all_attempts_share_one_time_limit(program: StartProgram, tmp_path: Path) -> None:
    py_spy = answering(tmp_path)
    py_spy.write_text(f"#!/bin/sh\necho >> {tmp_path}/asked\n/bin/sleep 0.4\nexit 1\n")
    with pytest.raises((PySpyFailed, PySpyLate)):
        read_threads(py_spy, program("sleeping.py").pid, 0.5)
    assert asked(tmp_path) <= 2 < MOST_DUMPS


@pytest.mark.skipif(sys.version_info < (3, 11), reason="py-spy marks the outer end of any stack")
@pytest.mark.real
def test_a_thread_that_calls_without_end_is_shown_in_whole_stacks(program: StartProgram) -> None:
    """py-spy itself, on a program made to tear what it reads: each begins at the top."""
    running = program("calling_without_end.py")
    py_spy = find_py_spy()
    assert py_spy is not None
    outermost = Counter(outermost_of(py_spy, running.pid) for _ in range(60))
    assert outermost.keys() <= {"<module>", "torn each time"}
    assert outermost["<module>"] >= 50


def outermost_of(py_spy: Path, pid: int) -> str:
    """What its main thread began with; on a busy machine a read is long, and torn more often."""
    try:
        return read_threads(py_spy, pid, 20.0)[0].frames[-1].name
    except PySpyFailed:
        return "torn each time"


@pytest.mark.real
def test_nothing_is_paused(program: StartProgram) -> None:
    """A pause shows: a thread that sleeps is woken by it."""
    running = program("sleeping.py")
    py_spy = find_py_spy()
    assert py_spy is not None
    until(lambda: (slept_s(running.pid) or 0.0) > 0.2, "it to sleep")
    before = switches(running.pid)
    for _ in range(5):
        read_threads(py_spy, running.pid, 20.0)
    assert switches(running.pid) == before
    dump(py_spy, running.pid, 20.0, "--native")
    assert switches(running.pid) != before


def switches(pid: int) -> list[str]:
    """How often its main thread gave up its processor, of its own will or not."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if "ctxt_switches" in line]


@pytest.mark.real
def test_threads_that_python_does_not_number_have_the_kernels_ids_all_the_same(
    program: StartProgram, tmp_path: Path
) -> None:
    """As of Python 3.10, where py-spy knows no ids without pausing the process."""
    running = program("many_threads.py", "3")
    py_spy = find_py_spy()
    assert py_spy is not None
    known = {one.thread_name: one.os_thread_id for one in read_threads(py_spy, running.pid, 20.0)}
    told = json.loads(dump(py_spy, running.pid, 20.0))
    unnumbered = answering(tmp_path, [{**one, "os_thread_id": None} for one in told])
    found = {one.thread_name: one.os_thread_id for one in read_threads(unnumbered, running.pid, 20)}
    tids = {int(task.name) for task in Path(f"/proc/{running.pid}/task").iterdir()}
    assert found == known
    assert set(found.values()) == tids
