"""Locks on files, and files that are locks: who has what a really blocked process waits for."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from look.waits.blocked import PROGRAM, state_of, target_of
from processes import PATIENCE_S, until

from lightning_hangcheck.look.lock_files import UNKNOWN, maker_of
from lightning_hangcheck.look.sample import Target, sample_all

if TYPE_CHECKING:
    from pathlib import Path

    from processes import RunningProgram, StartProgram

    from lightning_hangcheck.model.evidence import WaitTarget


def polled_by(waiter: RunningProgram) -> WaitTarget:
    """The lock for which any thread of a process is seen to poll."""

    def look() -> WaitTarget | None:
        (sample, _), *_ = sample_all([Target(pid=waiter.pid)], PATIENCE_S)
        assert sample.kernel is not None
        targets = (one for state in sample.kernel.threads for one in state.waits_for)
        return next((one for one in targets if one.kind == "lock"), None)

    return until(look, "the poller to be seen")


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

    target = polled_by(waiter)
    assert (target.call, target.kind, target.name) == ("filelock", "lock", path)
    assert [one.pid for one in target.holders] == [holder.pid]


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


HERE = socket.gethostname()

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


def ended_pid() -> int:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def made_by(path: Path, text: str) -> tuple[list[int], bool]:
    """Who made a file in which this is written, and whether that one is gone."""
    path.write_text(text)
    maker = maker_of(str(path), os.getpid())
    return [one.pid for one in maker.holders], maker.gone


@pytest.mark.parametrize("text", ["{}", "{}\n" + HERE, "pid: {}", '{{"pid": {}}}'])
def test_a_file_is_held_by_whom_it_names_on_this_host_or_abandoned(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "cache.lock"
    assert made_by(path, text.format(ended_pid())) == ([], True)
    assert made_by(path, text.format(os.getpid())) == ([os.getpid()], False)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert maker_of(str(path), os.getpid()).gone, "the number was given to this process later"


@pytest.mark.parametrize("text", ["{}\n" + HERE + "7", "busy"])
def test_a_file_that_names_nobody_of_this_host_is_of_an_unknown_maker(
    tmp_path: Path, text: str
) -> None:
    assert made_by(tmp_path / "cache.lock", text.format(os.getpid())) == ([], False)


@WHEN_ASKED_FOR
@pytest.mark.real
@pytest.mark.parametrize("library", [("filelock", "soft"), ("baton",)])
def test_a_lock_file_that_its_maker_keeps_open_is_abandoned_once_nobody_has_it_open(
    program: StartProgram, tmp_path: Path, library: tuple[str, ...]
) -> None:
    path = tmp_path / "lock"
    named = str(tmp_path) if library == ("baton",) else str(path)
    with path.open("w"):
        waiter = program(PROGRAM, *library, named)
        target = polled_by(waiter)
        assert ([one.pid for one in target.holders], target.abandoned) == ([os.getpid()], False)
    target = polled_by(waiter)
    assert (target.name, target.holders, target.abandoned) == (str(path), (), True)


ASKS = """
import subprocess, sys
from lightning_hangcheck.look.lock_files import maker_of
ended = subprocess.Popen(["true"])
ended.wait()
open(sys.argv[1], "w").write(str(ended.pid))
print(maker_of(sys.argv[1], __import__("os").getpid()).gone)
"""


@WHEN_ASKED_FOR
@pytest.mark.real
@pytest.mark.parametrize(("apart", "gone"), [((), "True"), (UNSHARE, "False")])
def test_a_container_does_not_see_who_made_a_file_on_a_disk_of_others(
    tmp_path: Path, apart: tuple[str, ...], gone: str
) -> None:
    if apart and os.geteuid() != 0:
        pytest.skip("needs root")
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    )
    if kind.stdout.strip() in ("overlayfs", "tmpfs"):
        pytest.skip("the folder is of this container alone")
    command = [*apart, sys.executable, "-c", ASKS, str(tmp_path / "a.lock")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == gone


WRITES = """
import os, socket, sys
open(sys.argv[1], "w").write(f"{os.getpid()}\\n{socket.gethostname()}\\n")
print("written", flush=True)
sys.stdin.read()
"""


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_process_of_a_container_is_not_the_one_of_that_number_here(tmp_path: Path) -> None:
    """It has this host's name, as with ``docker run --network host``, and numbers of its own."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    path = tmp_path / "a.lock"
    inside = subprocess.Popen(
        [*UNSHARE, sys.executable, "-c", WRITES, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert inside.stdout is not None
        assert inside.stdout.readline() == "written\n"
        assert maker_of(str(path), os.getpid()) == UNKNOWN
    finally:
        inside.communicate(timeout=120)


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_lock_with_a_time_limit_is_left_to_that(program: StartProgram, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    target = polled_by(program(PROGRAM, "filelock", "soft", str(path), "1000"))
    assert (target.name, target.abandoned) == (str(path), False)
