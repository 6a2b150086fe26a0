"""Locks that are a file's mere existence: which thread polls for which, and who made it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import until

from lightning_hangcheck.look.lock_files import UNKNOWN, maker_of
from lightning_hangcheck.look.sample import Subject, sample_all

if TYPE_CHECKING:
    from pathlib import Path

    from processes import RunningProgram, StartProgram

    from lightning_hangcheck.model.evidence import WaitTarget

pytestmark = pytest.mark.real
PROGRAM = "waiting_for.py"
HERE = socket.gethostname()
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


def polled_by(waiter: RunningProgram) -> WaitTarget:
    """The lock for which any thread of a process is seen to poll."""

    def look() -> WaitTarget | None:
        (sample, _), *_ = sample_all([Subject(pid=waiter.pid)], 10.0)
        assert sample.kernel is not None
        targets = (one for state in sample.kernel.threads for one in state.waits_for)
        return next((one for one in targets if one.kind == "lock"), None)

    return until(look, "the poller to be seen")


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
def test_a_file_whose_maker_is_gone_is_abandoned(tmp_path: Path, text: str) -> None:
    assert made_by(tmp_path / "cache.lock", text.format(ended_pid())) == ([], True)


@pytest.mark.parametrize(
    ("text", "known"), [("{}", True), ("{}\nelsewhere", False), ("busy", False)]
)
def test_a_file_is_held_by_whom_it_names_on_this_host(
    tmp_path: Path, text: str, known: bool
) -> None:
    found = made_by(tmp_path / "cache.lock", text.format(os.getpid()))
    assert found == ([os.getpid()] if known else [], False)


def test_a_process_that_was_given_the_number_of_the_maker_later_is_not_the_maker(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cache.lock"
    path.write_text(str(os.getpid()))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert maker_of(str(path), os.getpid()).gone


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


def test_a_host_whose_name_only_begins_like_ours_is_another(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.write_text(f"{os.getpid()}\n{socket.gethostname()}7\n")
    assert maker_of(str(path), os.getpid()) == UNKNOWN
    path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n")
    assert [one.pid for one in maker_of(str(path), os.getpid()).holders]


def test_a_lock_with_a_time_limit_is_left_to_that(program: StartProgram, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    target = polled_by(program(PROGRAM, "filelock", "soft", str(path), "1000"))
    assert (target.name, target.abandoned) == (str(path), False)
