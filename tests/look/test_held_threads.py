"""Which thread is joined, and who is inside of the lock that another takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from cases import STDLIB

from lightning_hangcheck.look.source import Sources
from lightning_hangcheck.look.stacks import Variables
from lightning_hangcheck.look.threads import with_relations
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessStack,
    ProcessState,
    ThreadStack,
    ThreadState,
    WaitTarget,
)

if TYPE_CHECKING:
    from pathlib import Path


SOURCE = """
def want():
    with lock:
        pass
def hold():
    with lock:
        work()
def wait():
    with lock:
        lock.release()
        work()
class Store:
    def want(self):
        with self.lock:
            pass
    def hold(self):
        with self.lock:
            work()
def hold_given(lock):
    with lock:
        work()
"""

CONDITION_WAIT = Frame("Condition.wait", f"{STDLIB}/threading.py", 327)
EVENT_WAIT = Frame("Event.wait", f"{STDLIB}/threading.py", 629)
ENTERS = Frame("Condition.__enter__", f"{STDLIB}/threading.py", 272)
FUTURE = Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451)
IN_EVENT = (EVENT_WAIT, CONDITION_WAIT)
LINES = {"want": 3, "hold": 7, "wait": 11, "hold_given": 21}
METHODS = {"want": 14, "hold": 18}


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file that was there before this process."""
    file = tmp_path / "train.py"
    file.write_text(SOURCE)
    os.utime(file, (1e9, 1e9))
    return str(file)


def call(source: str, name: str) -> Frame:
    """A call of a function of the source, or of a method where its class is named."""
    owner, _, function = name.rpartition(".")
    return Frame(name, source, (METHODS if owner else LINES)[function])


def thread(source: str, tid: int, *names: str, within: tuple[Frame, ...] = ()) -> ThreadStack:
    """A thread in these calls, which then called something else."""
    frames = (*(call(source, name) for name in names), *within)
    return ThreadStack(tid=tid, frames=frames, takes_lock=names[-1].endswith("want"))


def holder(*threads: ThreadStack) -> int | None:
    """Who has the lock that the first thread takes; of none the variables can be read."""
    stack = ProcessStack(pid=os.getpid(), source="py-spy", threads=threads)
    waits = ThreadState(
        tid=threads[0].tid or 0,
        state="S",
        cpu_s=0.0,
        waits_for=(WaitTarget(call="futex", kind="futex"),),
    )
    kernel = ProcessState(
        pid=os.getpid(), parent_pid=1, state="S", started_ticks=1, cpu_s=0.0, threads=(waits,)
    )
    first, *_ = with_relations(
        stack, kernel, Sources.of(os.getpid()), Variables(os.getpid(), 0.0)
    ).threads
    return first.tid if first.holds_lock else first.held_by


def test_a_lock_of_the_file_is_held_by_who_is_inside_of_it(source: str) -> None:
    waits, other = thread(source, 1, "want"), thread(source, 3, "want")
    assert holder(waits, thread(source, 2, "hold"), other) == 2
    assert holder(waits, other) is None


def test_a_lock_of_the_same_name_and_code_that_a_block_only_makes_are_told_apart(
    source: str,
) -> None:
    """A generator that was written in a block runs where somebody asks for its values."""
    waits, made = thread(source, 1, "want"), Frame("<genexpr>", source, LINES["hold"])
    assert holder(waits, thread(source, 2, "hold_given")) is None
    assert holder(waits, ThreadStack(tid=2, frames=(made,))) is None


def test_an_object_whose_place_is_not_known_may_be_another(source: str) -> None:
    waits, holds = thread(source, 1, "Store.want"), thread(source, 2, "Store.hold")
    assert holder(waits, holds) is None


@pytest.mark.parametrize(
    ("within", "known"),
    [((), True), ((CONDITION_WAIT,), False), (IN_EVENT, True), ((FUTURE, CONDITION_WAIT), True)],
)
def test_who_waits_for_news_behind_a_lock_may_have_given_it_back(
    source: str, within: tuple[Frame, ...], known: bool
) -> None:
    """A condition may be made of any lock; an event or a future has one of its own."""
    holds = thread(source, 2, "hold", within=within)
    assert holder(thread(source, 1, "want"), holds) == (2 if known else None)
    assert holder(thread(source, 1, "want", within=(ENTERS,)), holds) == (2 if known else None)


def test_who_may_not_have_it_is_not_known_to(source: str) -> None:
    """One of several was seen a moment later; one lets go in between."""
    waits, holds = thread(source, 1, "want"), thread(source, 2, "hold")
    assert holder(waits, holds, thread(source, 3, "hold")) is None
    assert holder(waits, thread(source, 2, "wait")) is None
    assert holder(waits, thread(source, 2, "hold", "wait")) is None


def test_a_file_that_changed_since_is_not_what_runs(source: str) -> None:
    os.utime(source)
    assert holder(thread(source, 1, "want"), thread(source, 2, "hold")) is None


def test_the_holder_is_found_however_deep_the_calls_within_are(source: str) -> None:
    """A handler may be interrupted by its own signal again and again."""
    interrupted = ("want",) * 120
    assert holder(thread(source, 1, "hold", *interrupted)) == 1
