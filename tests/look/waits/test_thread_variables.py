"""Which thread is joined, whose a lock is, and which ends no wait: by variables and source."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, until

from lightning_hangcheck.judge.threads import FUTEXES
from lightning_hangcheck.look.sample import Target, sample_all

if TYPE_CHECKING:
    from processes import StartProgram

    from lightning_hangcheck.model.evidence import ProcessStack, ThreadStack

pytestmark = pytest.mark.real


def main_thread(pid: int, function: str) -> ThreadStack:
    """The main thread, once it waits in a function."""

    def look() -> ThreadStack | None:
        (sample, _), *_ = sample_all([Target(pid=pid)], PATIENCE_S)
        assert sample.stack is not None
        assert sample.kernel is not None
        main, state = sample.stack.threads[0], sample.kernel.threads[0]
        waits = any(one.kind == "futex" for one in state.waits_for) or state.syscall in FUTEXES
        there = any(one.function.endswith(function) for one in main.frames)
        return main if waits and there else None

    return until(look, f"the main thread to stand in {function}")


@WHEN_ASKED_FOR
def test_the_thread_that_is_joined_is_known_beside_others(program: StartProgram) -> None:
    running = program("waiting_in_itself.py", "join")
    main = main_thread(running.pid, "join")
    (sample, _), *_ = sample_all([Target(pid=running.pid)], PATIENCE_S)
    assert sample.stack is not None
    joined = [one.name for one in sample.stack.threads if one.tid == main.joined]
    assert joined == ["the joined one"]


@WHEN_ASKED_FOR
@pytest.mark.parametrize(("kind", "own"), [("handler", True), ("others", False)])
def test_a_lock_is_known_to_be_the_threads_own(
    program: StartProgram, kind: str, *, own: bool
) -> None:
    """Of two objects of one class each has its own lock."""
    running = program("waiting_in_itself.py", kind)
    main = main_thread(running.pid, "report")
    assert (main.takes_lock, main.holds_lock) == (True, own)


def known_holders(pid: int, *functions: str) -> dict[str, str]:
    """Which thread has the lock that another takes, by name, once threads wait in functions."""

    def look() -> ProcessStack | None:
        (sample, _), *_ = sample_all([Target(pid=pid)], PATIENCE_S)
        assert sample.stack is not None
        assert sample.kernel is not None
        waiting = {one.tid for one in sample.kernel.threads if one.syscall in FUTEXES}
        waits = [one.frames for one in sample.stack.threads if one.tid in waiting and one.frames]
        places = Counter(one[-1].function.rpartition(".")[2] for one in waits)
        return sample.stack if Counter(functions) <= places else None

    stack = until(look, f"threads to wait in {functions}")
    names = {one.tid: one.name for one in stack.threads}
    known = {one.name: names[one.held_by] for one in stack.threads if one.held_by is not None}
    return {name: holder for name, holder in known.items() if not name.startswith("turn")}


CIRCLE = {"MainThread": "the other", "the other": "MainThread"}


@pytest.mark.parametrize(
    ("kind", "functions", "known"),
    [
        ("file", ("index_after_cache", "rebuild_index"), CIRCLE),
        *(
            pytest.param(*one, marks=WHEN_ASKED_FOR)
            for one in (
                ("objects", ("clear", "clear"), CIRCLE),
                ("closures", ("want",), {}),
                ("condition", ("__enter__",), {"MainThread": "the other"}),
                ("other", ("clear",), {}),
            )
        ),
    ],
)
def test_it_is_known_which_thread_has_the_lock_that_another_takes(
    program: StartProgram, kind: str, functions: tuple[str, ...], known: dict[str, str]
) -> None:
    """Beside threads that tick, and that take turns with a lock."""
    running = program("held_by_another.py", kind)
    if known:  # a starved look brings no variables, a later one does
        until(
            lambda: known_holders(running.pid, *functions) == known or None, f"{known} to be seen"
        )
    else:
        assert known_holders(running.pid, *functions) == known
