"""Who has the lock on a file that a really blocked process waits for."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from look.waits.blocked import PROGRAM, state_of, target_of
from processes import until

from lightning_hangcheck.look.sample import Subject, sample_all

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram

    from lightning_hangcheck.model.evidence import WaitTarget


@pytest.mark.parametrize(("kind", "call"), [("flock", "flock"), ("lockf", "fcntl")])
def test_a_waiter_for_a_file_lock_names_file_and_holder(
    program: StartProgram, tmp_path: Path, kind: str, call: str
) -> None:
    path = str(tmp_path / "a lock")
    holder = program(PROGRAM, "lock", kind, path)
    assert holder.announcement() == "holding"
    waiter = program(PROGRAM, "lock", kind, path)
    target = target_of(waiter.pid, kind="lock")
    assert (target.call, target.name) == (call, path)
    assert [(one.pid, one.program[:6]) for one in target.holders] == [(holder.pid, "python")]


def test_a_lock_that_a_child_inherited_is_the_childs(program: StartProgram, tmp_path: Path) -> None:
    """The kernel's table goes on to name the parent, which has closed the file."""
    path = tmp_path / "a.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file.fileno()])
    try:
        waiter = program(PROGRAM, "lock", "flock", path)
        target = target_of(waiter.pid, child.pid, os.getpid(), kind="lock")
        assert [holder.pid for holder in target.holders] == [child.pid]
    finally:
        child.communicate()


def test_a_poller_for_a_lock_file_names_file_and_holder(
    program: StartProgram, tmp_path: Path
) -> None:
    folder = tmp_path / ("models--somebody--" + 200 * "x")
    folder.mkdir()
    path = str(folder / "hub.lock")
    holder = program(PROGRAM, "lock", "flock", path)
    assert holder.announcement() == "holding"
    waiter = program(PROGRAM, "filelock", "hard", path)

    def look() -> WaitTarget | None:
        (sample, _), *_ = sample_all([Subject(pid=waiter.pid)], 10.0)
        assert sample.kernel is not None
        return next(iter(sample.kernel.threads[0].waits_for), None)

    target = until(look, "the poller to be seen")
    assert (target.call, target.kind, target.name) == ("filelock", "lock", path)
    assert [one.pid for one in target.holders] == [holder.pid]


def test_a_build_that_waits_for_a_lock_file_of_another_names_it(
    program: StartProgram, tmp_path: Path
) -> None:
    """Whoever made it may be gone: the file says nobody."""
    lock = tmp_path / "lock"
    lock.touch()
    waiter = program(PROGRAM, "baton", str(tmp_path))

    def look() -> WaitTarget | None:
        (sample, _), *_ = sample_all([Subject(pid=waiter.pid)], 10.0)
        assert sample.kernel is not None
        targets = sample.kernel.threads[0].waits_for
        return next((one for one in targets if one.kind == "lock"), None)

    target = until(look, "the poller to be seen")
    assert (target.call, target.name, target.holders) == ("baton.wait", str(lock), ())


def test_a_poller_for_a_database_names_file_and_holder(
    program: StartProgram, tmp_path: Path
) -> None:
    path = str(tmp_path / "index.sqlite")
    holder = program(PROGRAM, "database", path)
    assert holder.announcement() == "holding"
    waiter = program(PROGRAM, "database", path)
    target = target_of(waiter.pid, holder.pid, kind="lock")
    assert (target.call, target.name) == ("sleep", path)
    assert [one.pid for one in target.holders] == [holder.pid]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="time.sleep is no sleep before")
def test_one_that_sleeps_in_python_beside_a_locked_file_waits_for_nobody(
    program: StartProgram, tmp_path: Path
) -> None:
    path = str(tmp_path / "a lock")
    holder = program(PROGRAM, "lock", "flock", path)
    assert holder.announcement() == "holding"
    sleeper = program(PROGRAM, "sleep_beside", path)

    def asleep() -> bool:
        return "nanosleep" in state_of(sleeper.pid, holder.pid).threads[0].wchan

    until(asleep, "it to sleep")
    (target,) = state_of(sleeper.pid, holder.pid).threads[0].waits_for
    assert (target.kind, target.call) == ("time", "clock_nanosleep")


@pytest.mark.parametrize(("host", "known"), [(socket.gethostname(), True), ("elsewhere", False)])
def test_a_soft_lock_is_held_by_whom_its_file_names_on_this_host(
    program: StartProgram, tmp_path: Path, host: str, known: bool
) -> None:
    path = tmp_path / "soft.lock"
    path.write_text(f"{os.getpid()}\n{host}\n")
    waiter = program(PROGRAM, "filelock", "soft", str(path))

    def look() -> WaitTarget | None:
        (sample, _), *_ = sample_all([Subject(pid=waiter.pid)], 10.0)
        assert sample.kernel is not None
        return next(iter(sample.kernel.threads[0].waits_for), None)

    target = until(look, "the poller to be seen")
    assert target.name == str(path)
    assert [one.pid for one in target.holders] == ([os.getpid()] if known else [])
