"""A judgement is not searched for circles, and leaves the collection of garbage as it was."""

from __future__ import annotations

import gc
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.verdict import without_collections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CASE = job(*(rank(number, IN_LOAD if number == 1 else IN_ALL_REDUCE) for number in range(64)))


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    """Whatever a test leaves behind, the next one begins with collections."""
    gc.enable()
    yield
    gc.enable()


def test_no_collection_begins_in_a_judgement() -> None:
    begun: list[str] = []
    judge(CASE)  # reads the data files
    gc.callbacks.append(told := lambda phase, _: begun.append(phase))
    before = gc.get_threshold()
    try:
        gc.set_threshold(10)
        judge(CASE)
        gc.disable()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(told)
    assert len(begun) < 10  # one may begin as they are switched on; there were hundreds


def test_it_is_as_it_was_before() -> None:
    judge(CASE)
    assert gc.isenabled()
    gc.disable()
    judge(CASE)
    assert not gc.isenabled()


def test_also_after_an_error() -> None:
    with pytest.raises(ValueError, match="any"), without_collections():
        raise ValueError("any")
    assert gc.isenabled()


def test_calls_may_be_nested() -> None:
    with without_collections():
        with without_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_of_two_threads_either_may_end_first(first_to_end: int) -> None:
    stacks = ExitStack(), ExitStack()
    for stack in stacks:
        _in_thread(lambda stack=stack: stack.enter_context(without_collections()))
    assert not gc.isenabled()
    for stack in (stacks[first_to_end], stacks[1 - first_to_end]):
        _in_thread(stack.close)
    assert gc.isenabled()


def _in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
