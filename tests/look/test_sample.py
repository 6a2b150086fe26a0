"""Kernel state and stacks taken together, of one process and of many."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, until

from lightning_hangcheck.look.proc import vitals
from lightning_hangcheck.look.sample import Target, sample_all

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "state", "function"),
    [
        pytest.param("stopping_itself.py", "T", "stops_here", marks=WHEN_ASKED_FOR),
        ("uninterruptible.py", "D", "waits_for_its_child"),
    ],
)
def test_a_process_that_cannot_be_paused_is_read_all_the_same(
    program: StartProgram, name: str, state: str, function: str
) -> None:
    running = program(name)
    pid = running.pid
    until(lambda: vitals(pid).state == state, f"state {state}")
    seen, gaps = sample_all([Target(pid=pid, rank=3)], PATIENCE_S)[0]
    assert gaps == ()
    assert seen.kernel.state == state
    assert function in [frame.function for frame in seen.stack.threads[0].frames]


@pytest.mark.real
def test_many_are_sampled_at_once_in_the_order_asked(program: StartProgram) -> None:
    running = [program("sleeping.py") for _ in range(4)]
    gone = subprocess.Popen(["true"])
    gone.wait()
    pids = [each.pid for each in running] + [gone.pid]
    answers = sample_all([Target(pid=pid, rank=rank) for rank, pid in enumerate(pids)], PATIENCE_S)
    for each, (seen, gaps) in zip(running, answers, strict=False):
        assert gaps == ()
        assert seen.kernel.pid == seen.stack.pid == each.pid
        assert 0 < seen.taken_ns <= time.monotonic_ns()
    seen, gaps = answers[4]
    assert seen.kernel is None
    assert seen.stack is None
    assert {gap.rank for gap in gaps} == {4}
    assert {gap.why for gap in gaps} == {"the process has ended"}


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_program_that_is_no_python_gives_its_kernel_state_and_no_gap() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        ((seen, gaps),) = sample_all([Target(pid=sleeper.pid, rank=0, python=False)], PATIENCE_S)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert seen.kernel is not None
    assert (seen.stack, gaps) == (None, ())


WAITING_FOR_ANYBODY = """
import os, select, signal
child = os.fork() or signal.pause()
print(child, flush=True)
select.epoll().poll()
"""


@pytest.mark.parametrize(
    ("file", "asked"), [("train.py", True), ("torch/distributed/distributed_c10d.py", False)]
)
def test_helpers_are_asked_for_stacks_unless_their_rank_waits_for_other_ranks(
    tmp_path: Path, file: str, asked: bool
) -> None:
    script = tmp_path / file
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(WAITING_FOR_ANYBODY)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as rank:
        child = int(rank.stdout.readline())
        try:
            until(lambda: vitals(rank.pid).state == "S", "it to wait")
            targets = [Target(pid=rank.pid, role="rank"), Target(pid=child)]
            (own, _), (helper, _) = sample_all(targets, PATIENCE_S)
        finally:
            os.kill(child, signal.SIGKILL)
            rank.kill()
    assert own.stack is not None
    assert (own.kernel.memory is not None, helper.kernel is not None) == (True, True)
    assert (helper.stack is not None) == asked


def test_of_a_look_that_was_given_up_nothing_more_is_begun() -> None:
    """The job has ended: who waits for this process to end does not wait for all its probes."""
    taken = sample_all([Target(pid=os.getpid(), rank=0)] * 100, PATIENCE_S, given_up=lambda: True)
    assert [(one.kernel, one.stack, gaps) for one, gaps in taken] == [(None, None, ())] * 100


def test_where_time_is_over_before_its_stack_was_asked_for_a_process_has_a_gap() -> None:
    over = iter([False, True])
    ((seen, gaps),) = sample_all([Target(pid=os.getpid())], PATIENCE_S, given_up=lambda: next(over))
    assert (seen.kernel is not None, seen.stack) == (True, None)
    assert "no time was left" in gaps[-1].why
