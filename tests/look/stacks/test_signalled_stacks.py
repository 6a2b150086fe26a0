"""A process that no debugger may read writes its stacks itself; nothing is sent to any other."""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, until

from lightning_hangcheck.look.signalled_stacks import read_stacks, signalled_stacks
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.session.session import find_offer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from processes import RunningProgram, StartProgram


FIRST_CHOICE = signal.SIGRTMIN + 9


@pytest.fixture
def offering(program: StartProgram) -> Iterator[StartProgram]:
    """Starts the program that offers; its session goes with the test."""
    sessions: list[str] = []

    def start(*arguments: str) -> RunningProgram:
        running = program("offering_stacks.py", *arguments)
        sessions.append(running.first_words)
        return running

    yield start
    for session in sessions:
        shutil.rmtree(session, ignore_errors=True)


def why_not(pid: int) -> str:
    """The reason of the one gap; there must be no stack."""
    stack, (gap,) = signalled_stacks(pid, 3, 2.0)
    assert stack is None
    return gap.reason


def innermost(pid: int) -> str:
    """The function in which its main thread stands."""
    stack, gaps = signalled_stacks(pid, 3, PATIENCE_S)
    assert gaps == ()
    assert stack is not None
    return stack.threads[0].frames[-1].function


@WHEN_ASKED_FOR
@pytest.mark.real
def test_it_answers_while_a_call_keeps_the_interpreter_lock_and_again(
    offering: StartProgram,
) -> None:
    running = offering("keeps_the_interpreter_lock")
    until(lambda: innermost(running.pid) == "keeps_the_interpreter_lock", "it to keep the lock")
    assert innermost(running.pid) == "keeps_the_interpreter_lock"


@WHEN_ASKED_FOR
@pytest.mark.real
def test_beyond_a_hundred_threads_the_main_one_is_missing_and_the_gap_says_so(
    offering: StartProgram,
) -> None:
    running = offering("stands_with_many_helpers")
    assert "more than 100 threads" in why_not(running.pid)
    assert "main thread is not among them" in why_not(running.pid)


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_signal_that_somebody_handles_is_not_taken(offering: StartProgram) -> None:
    taken, free = offering("waits_for_ever", "taken"), offering("waits_for_ever")
    offers = [find_offer(running.pid) for running in (taken, free)]
    assert [offer.signal for offer in offers if offer] == [FIRST_CHOICE + 1, FIRST_CHOICE]


@pytest.mark.real
def test_a_process_that_became_another_program_is_sent_nothing(offering: StartProgram) -> None:
    """It has no handler any more: the signal would end it."""
    running = offering("becomes_another_program")
    until(lambda: psutil.Process(running.pid).name() == "sleep", "the other program")
    assert why_not(running.pid) == f"it no longer handles signal {FIRST_CHOICE}"
    assert running.process.poll() is None


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_stopped_process_is_left_alone(offering: StartProgram) -> None:
    running = offering("waits_for_ever")
    os.kill(running.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(running.pid).status() == "stopped", "it to stop")
    assert why_not(running.pid) == "it is stopped, so it answers no signal"


@WHEN_ASKED_FOR
@pytest.mark.real
def test_at_its_end_a_process_takes_its_offer_back(offering: StartProgram) -> None:
    running = offering("leaves")
    assert find_offer(running.pid) is not None
    running.tell("leave")
    assert running.process.wait(120) == 0
    assert find_offer(running.pid) is None
    assert list(Path(running.first_words, "stacks").iterdir()) == []


NEWER = """\
Thread 0x00007f00000000b0 [loader] (most recent call first):
  File "/home/ada/data.py", line 17 in __getitem__
  File "/home/ada/data.py", line 9 in work

Current thread 0x00007f00000000a0 [MainThread] (most recent call first):
  File "/home/ada/m\\xfcnchen/\\u8a13\\u7df4.py", line 3 in pr\\xfcfe
  ...
"""


def test_the_main_thread_comes_first_and_calls_run_from_the_outermost() -> None:
    main, loader = read_stacks(NEWER, 4711, 0x7F00000000A0)
    assert (main.tid, main.name) == (4711, "MainThread")
    assert main.frames == (Frame("prüfe", "/home/ada/münchen/訓練.py", 3),)
    assert (loader.tid, loader.name) == (None, "loader")
    assert [frame.function for frame in loader.frames] == ["work", "__getitem__"]


@pytest.mark.parametrize("text", ["", "Fatal Python error: Segmentation fault\n", NEWER[:90]])
def test_without_the_main_thread_nothing_is_claimed(text: str) -> None:
    assert read_stacks(text, 4711, 0x7F00000000A0) == ()


def test_what_this_interpreter_writes_is_understood() -> None:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = file.read()
    main, *_ = read_stacks(text, 1, threading.main_thread().ident or 0)
    functions = [frame.function for frame in main.frames]
    assert functions[-1] == "test_what_this_interpreter_writes_is_understood"
