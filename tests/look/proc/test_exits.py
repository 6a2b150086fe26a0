"""The end of processes that are not our children: noticed at once, with their exit code."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S

from lightning_hangcheck.look.exits import Exited, ExitWatcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processes import StartProgram

SIGKILL = 9


@pytest.fixture(params=[True, False], ids=["pidfd", "polling"])
def watcher(request: pytest.FixtureRequest) -> Iterator[ExitWatcher]:
    watcher = ExitWatcher(use_pidfd=request.param)
    yield watcher
    watcher.close()


def wait_for_one(watcher: ExitWatcher) -> Exited:
    """The one process that ended."""
    (exited,) = watcher.wait(PATIENCE_S)
    return exited


@pytest.mark.parametrize(
    ("ending", "code"), [("exit 0", 0), ("exit 3", 3), (f"signal {SIGKILL}", -SIGKILL)]
)
def test_the_exit_code_is_read_before_the_parent_reaps(
    program: StartProgram, watcher: ExitWatcher, ending: str, code: int
) -> None:
    parent = program("parent_of_one.py", "late")
    child = int(parent.first_words)
    watcher.watch(child)
    before = time.monotonic_ns()
    parent.tell(ending)
    exited = wait_for_one(watcher)
    assert (exited.pid, exited.exit_code) == (child, code)
    assert before < exited.seen_ns <= time.monotonic_ns()
    assert watcher.wait(0) == []


def test_a_process_that_was_reaped_at_once_is_noticed_all_the_same(
    program: StartProgram, watcher: ExitWatcher
) -> None:
    """Its code is lost on kernels before 6.15, but it is never a wrong one."""
    parent = program("parent_of_one.py", "at_once")
    child = int(parent.first_words)
    watcher.watch(child)
    parent.tell("exit 3")
    assert parent.announcement() == "reaped"
    exited = wait_for_one(watcher)
    assert exited.pid == child
    assert exited.exit_code in (3, None)


def test_a_process_that_is_gone_already_is_reported_once(watcher: ExitWatcher) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    watcher.watch(gone.pid)
    exited = wait_for_one(watcher)
    assert (exited.pid, exited.exit_code) == (gone.pid, None)
    assert watcher.wait(0) == []


def test_a_living_process_is_not_reported_and_may_be_watched_twice(watcher: ExitWatcher) -> None:
    watcher.watch(os.getpid())
    watcher.watch(os.getpid())
    assert watcher.wait(0.02) == []


def test_several_that_end_together_are_each_reported_once(
    program: StartProgram, watcher: ExitWatcher
) -> None:
    parents = [program("parent_of_one.py", "late") for _ in range(3)]
    children = {int(parent.first_words) for parent in parents}
    for child in children:
        watcher.watch(child)
    for code, parent in enumerate(parents, 4):
        parent.tell(f"exit {code}")
    found = {}
    while len(found) < 3:
        ended = watcher.wait(PATIENCE_S)
        assert ended
        found |= {each.pid: each.exit_code for each in ended}
    assert found.keys() == children
    assert set(found.values()) == {4, 5, 6}
