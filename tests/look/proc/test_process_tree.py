"""Who is below whom, with which environment, on real processes."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from processes import until

from lightning_hangcheck.look.proc import (
    command_line,
    descendants,
    process_ref,
    read_environment,
    vitals,
)
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from processes import StartProgram


@pytest.fixture
def family(program: StartProgram) -> tuple[int, set[int]]:
    """A parent and the pids of its two forked workers."""
    running = program("fork_workers.py")
    lines = [running.first_words, running.announcement(), running.announcement()]
    workers = {int(line.split()[2]) for line in lines if line.startswith("worker")}
    return running.pid, workers


def test_workers_are_found_below_their_parent_and_it_is_not_below_itself(
    family: tuple[int, set[int]],
) -> None:
    parent, workers = family
    found = descendants(parent)
    assert {each.pid for each in found} == workers
    assert {each.parent_pid for each in found} == {parent}
    assert all(vitals(each.pid).is_still(each.started_ticks) for each in found)
    assert sorted(descendants(*workers, parent), key=found.index) == list(found), "each once"


def test_grandchildren_come_after_their_parents(family: tuple[int, set[int]]) -> None:
    parent, workers = family
    found = [each.pid for each in descendants(os.getpid())]
    assert workers < set(found)
    assert found.index(parent) < min(found.index(worker) for worker in workers)


def test_a_process_that_is_gone_has_no_descendants_and_no_name() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert descendants(gone.pid) == ()
    assert process_ref(gone.pid) is None


def test_environment_and_command_line_are_those_it_was_started_with(program: StartProgram) -> None:
    running = program("sleeping.py", RANK="3", GREETING="wörld = round")
    environment = read_environment(running.pid)
    assert environment["RANK"] == "3"
    assert environment["GREETING"] == "wörld = round"
    assert command_line(running.pid)[-1].endswith("sleeping.py")


def test_bytes_that_are_no_text_do_not_break_the_environment() -> None:
    child = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, env={b"ODD": b"\xff\xfe", b"RANK": b"1"}
    )
    try:
        environment = until(lambda: _environment_with_odd(child.pid), "its environment")
        assert environment["RANK"] == "1"
        assert environment["ODD"].encode()
    finally:
        child.communicate(timeout=120)


def _environment_with_odd(pid: int) -> dict[str, str]:
    """Empty until the program has begun: until then it shows none."""
    environment = read_environment(pid)
    return environment if not isinstance(environment, Gap) and "ODD" in environment else {}


def test_a_process_that_is_gone_leaves_a_gap() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for read, what in ((read_environment, "environment"), (command_line, "command line")):
        gap = Gap(f"{what} of pid {gone.pid}", None, "the process has ended", "process_memory")
        assert read(gone.pid) == gap
