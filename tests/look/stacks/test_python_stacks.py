"""Stacks of real programs that are really stuck: exact functions, files and lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, PROGRAMS, until

from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.look.source import Sources

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram

    from lightning_hangcheck.model.evidence import Frame, ProcessStack


def take(pid: int) -> ProcessStack:
    """The stacks, which must be there without a gap."""
    stack, gaps = python_stacks(pid, 3, PATIENCE_S)
    assert gaps == ()
    return stack


def line_of(program: str, text: str) -> int:
    """Number of the first line that holds the text."""
    lines = (PROGRAMS / program).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def innermost_when_at(pid: int, line: int) -> Frame:
    """The main thread's innermost frame, once it is at that line."""

    def at_line() -> Frame | None:
        frame = take(pid).threads[0].frames[-1]
        return frame if frame.line == line else None

    return until(at_line, f"line {line}")


@pytest.mark.real
def test_both_sides_of_a_deadlock_are_shown_at_their_lines_under_their_names(
    program: StartProgram,
) -> None:
    name = "deadlocked_threads.py"
    running = program(name)
    frame = innermost_when_at(running.pid, line_of(name, "second.acquire()"))
    assert (frame.function, frame.file) == ("wants_second", str(PROGRAMS / name))
    threads = until(lambda: (t := take(running.pid).threads)[1:] and t, "the second thread")
    assert [thread.name for thread in threads] == ["MainThread", "other side"]
    assert threads[0].tid == running.pid
    assert "wants_first" in [frame.function for frame in threads[1].frames]


@pytest.mark.parametrize(
    ("line", "takes"),
    [
        ("with self.lock:", True),
        ("    with guard:  # of the cache (all of it)", True),
        ("with guard: hits += 1", True),
        ("with guard, other as taken:", True),
        ("self.lock.acquire(timeout=5)", True),
        ("with guard: torch.mm(a, b)", False),
        ("with open(path):", False),
        ("without: int = 1", False),
    ],
)
def test_a_line_that_takes_a_lock_and_calls_nothing_else_is_known(
    tmp_path: Path, line: str, takes: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n")
    assert Sources("", time.time()).takes_lock(str(file), 1) == takes
