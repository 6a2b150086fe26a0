"""Fixtures of all rooms: real programs that always end, and a refusal where none can be read."""

from __future__ import annotations

import os
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from processes import MARK, end_by_pid, marked_processes, start_program, until
from subjects import subject

from lightning_hangcheck import log
from lightning_hangcheck.doctor.every_run_checks import stacks_readable
from lightning_hangcheck.session.session import SESSION_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from processes import RunningProgram, StartProgram


# a busy machine is no finding; pytest's own time limit stops what never ends
EXAMPLES = 400 if "RUN_LONG_TESTS" in os.environ else 40
settings.register_profile("any-machine", deadline=None, max_examples=EXAMPLES)
settings.load_profile("any-machine")
# a shell that starts the tests in the background has them ignore Ctrl-C, and programs inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the session when a process that a test started is still there at its end."""
    mark = f"{os.getpid()}-{os.urandom(4).hex()}"
    os.environ[MARK] = mark
    yield
    try:
        until(lambda: not marked_processes(mark), "processes of tests to end")
    except AssertionError:
        left = marked_processes(mark)
        names = [(process.pid, " ".join(process.cmdline())) for process in left]
        end_by_pid(left)
        pytest.fail(f"tests left processes behind (ended now): {names}")


@pytest.fixture(autouse=True)
def no_session_of_the_test_before() -> Iterator[None]:
    """What records in a test's own process names its session for what that process starts."""
    yield
    os.environ.pop(SESSION_VARIABLE, None)


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test see what a process reports only once."""
    monkeypatch.setattr(log, "_said", set())


@cache
def _refusal() -> str | None:
    """Say why tests that look into other processes cannot work here, None where they can."""
    (check,) = stacks_readable(subject(), time_limit_s=30.0)
    return None if check.status == "ok" else f"{check.sentence}; {check.remedy}"


@pytest.fixture(autouse=True)
def preflight(request: pytest.FixtureRequest) -> None:
    """Stop before the first `real` test where py-spy cannot read a process: all would fail."""
    refusal = _refusal() if request.node.get_closest_marker("real") else None
    if refusal is not None:
        pytest.exit(f"these tests need to read other processes here: {refusal}", returncode=2)


@pytest.fixture
def program() -> Iterator[StartProgram]:
    """Start programs of tests/programs that announce themselves once; all end with the test."""
    started: list[RunningProgram] = []

    def start(name: str | Path, *arguments: str, **environment: str) -> RunningProgram:
        running = start_program(name, *arguments, environment=environment)
        started.append(running)
        running.first_words = running.announcement()
        return running

    yield start
    for running in started:
        running.end()


@pytest.fixture
def as_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have a script run as py-spy, which is looked for beside this Python; with none there is none.

    Programs are started before: they could not import what is installed beside the real Python.
    """

    def install(script: str) -> None:
        (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        if script:
            (tmp_path / "py-spy").write_text(script)
            (tmp_path / "py-spy").chmod(0o700)
        else:
            monkeypatch.setenv("PATH", str(tmp_path))

    return install
