"""Loops that get nowhere: what shows them, and what a computation looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    IN_BARRIER,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    SECOND,
    job,
    look,
    rank,
    user,
    with_main,
    worker,
)
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.activity import read_rank_activity
from lightning_hangcheck.judge.livelock import FunctionsMet
from lightning_hangcheck.model.case import Pace, RankView
from lightning_hangcheck.model.evidence import Frame, ProcessStack, Sample, ThreadStack, WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessLook


def at(
    second: int, *functions: str, helper: str = "", file: str = "work.py", **main: Any
) -> Sample:
    """A look that finds the main thread in these functions, and another thread in one."""
    frames = tuple(Frame(name, "train.py", second) for name in functions)
    other = ThreadStack(tid=2, frames=(Frame(helper, file, 1),) if helper else ())
    stack = ProcessStack(
        pid=1, source="py-spy", threads=(ThreadStack(tid=1, frames=frames, **main), other)
    )
    return Sample(taken_ns=second * SECOND, stack=stack)


def test_several_lines_or_python_at_one_show_that_it_goes_round() -> None:
    met = FunctionsMet()
    met.meet(at(2, "main"), 0, of_child=False)
    assert not met.goes_round
    met.meet(at(2, "main"), 2 * SECOND, of_child=False)
    met.meet(at(3, "crop"), 2 * SECOND, of_child=True)
    assert not met.goes_round
    met.meet(at(4, "main"), 3 * SECOND, of_child=False)
    assert not met.goes_round  # the worker's function was new, so what was seen before is past
    met.meet(at(5, "main"), 3 * SECOND, of_child=False)
    assert met.goes_round
    met.meet(at(6, "main", "evaluate"), 3 * SECOND, of_child=False)
    assert not met.goes_round
    met.meet(at(7, "main", "evaluate", owns_gil=True), 6 * SECOND, of_child=False)
    assert met.goes_round
    assert met.meet(at(9, "main"), 8 * SECOND, of_child=False), "after a beat all is new again"


@pytest.mark.parametrize(("line", "new"), [(20, False), (31, True)])
def test_a_function_that_a_loop_is_in_for_moments_is_nothing_new_where_a_known_line_calls_it(
    line: int, new: bool
) -> None:
    """`while True: randrange(...); crop.sum()` is seen in `randrange` once in a hundred looks."""

    def in_loop(second: int, line: int, *called: str) -> Sample:
        frames = (Frame("main", "train.py", 5), Frame("crop", "train.py", line))
        below = tuple(Frame(name, "/usr/lib/python3.11/random.py", 1) for name in called)
        main = ThreadStack(tid=1, frames=frames + below)
        stack = ProcessStack(pid=1, source="py-spy", threads=(main,))
        return Sample(taken_ns=second * SECOND, stack=stack)

    met = FunctionsMet()
    assert met.meet(in_loop(2, 20), 0, of_child=False)
    assert met.meet(in_loop(3, 20, "sample"), 2 * SECOND, of_child=False)
    for second in range(4, 20):
        assert not met.meet(in_loop(second, 20 + second % 2), 3 * SECOND, of_child=False)
    assert met.meet(in_loop(20, line, "randrange"), 3 * SECOND, of_child=False) is new


DEEPER = (*IN_LOAD, user("pick", 52))
CROPPING = (*IN_GETITEM, user("crop", 9, "data.py"))
WAITS = rank(0, IN_BARRIER)
KNOWN = Pace(longest_pause_s=0.2, pauses=9)


def without_news(seconds: float, *children: ProcessLook, **fields: Any) -> RankView:
    """A rank that moves, and has shown nothing new for so long: its worker, or it itself."""
    stacks = (IN_LOADER,) if children else (IN_LOAD, DEEPER, IN_LOAD)
    view = rank(1, *stacks, children=children, cpu=0.0 if children else 1.0, **fields)
    return replace(view, nothing_new_for_s=seconds)


def cropping(**fields: Any) -> ProcessLook:
    return worker(0, IN_GETITEM, CROPPING, IN_GETITEM, cpu=1.0, **fields)


@pytest.mark.parametrize(
    ("view", "activity"),
    [
        (without_news(5.9), "moving"),
        (without_news(6.0), "busy"),
        (without_news(99.0, bytes_s=100_000), "moving"),
    ],
)
def test_a_livelock_takes_some_time_to_know_and_moves_no_bytes(
    view: RankView, activity: str
) -> None:
    assert read_rank_activity(view).activity == activity


@pytest.mark.parametrize(
    ("seconds", "told"), [(9.9, "healthy"), (10.0, "suspect"), (300.0, "hang")]
)
@pytest.mark.parametrize("children", [(), (cropping(),)])
def test_a_livelock_is_called_a_hang_after_the_stall_timeout_however_fast_the_pace(
    seconds: float, told: str, children: tuple[ProcessLook, ...]
) -> None:
    assert judge(job(WAITS, without_news(seconds, *children, pace=KNOWN))).verdict == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(59.0, "healthy"), (61.0, "suspect"), (299.0, "suspect"), (300.0, "hang")]
)
def test_on_a_crowded_machine_a_livelock_takes_as_much_of_the_processor_to_know(
    seconds: float, told: str
) -> None:
    view = rank(1, IN_LOAD, DEEPER, IN_LOAD, cpu=0.1, pace=KNOWN)
    starved = with_main(view, queued_s=lambda number: 0.9 * number)
    assert judge(job(WAITS, replace(starved, nothing_new_for_s=seconds))).verdict == told


@pytest.mark.parametrize(("seconds", "told"), [(59.0, "healthy"), (61.0, "suspect")])
def test_on_a_crowded_machine_a_loop_that_spins_takes_as_much_of_the_processor_to_know(
    seconds: float, told: str
) -> None:
    view = rank(1, IN_LOAD, IN_LOAD, IN_LOAD, cpu=0.1, silent=seconds, goes_round=True)
    starved = with_main(view, queued_s=lambda number: 0.9 * number)
    assert judge(job(WAITS, replace(starved, nothing_new_for_s=seconds))).verdict == told


SLEEP = WaitTarget(call="clock_nanosleep", kind="time")


def seen(second: int, turns: int | None, *waits_for: WaitTarget, helpers_s: float = 0.0) -> Sample:
    """A sample of a main thread with so many turns so far; helpers computed for so long."""
    (one,) = look(IN_LOAD, samples=1, turns=turns, waits_for=waits_for).samples
    assert one.kernel is not None
    kernel = replace(one.kernel, cpu_s=one.kernel.threads[0].cpu_s + helpers_s)
    return replace(one, taken_ns=second * SECOND, kernel=kernel)


def test_whoever_naps_at_one_line_goes_round() -> None:
    met = FunctionsMet()
    met.meet(seen(2, 100, SLEEP), 0, of_child=False)
    met.meet(seen(3, 9_000), 2 * SECOND, of_child=False)
    assert not met.goes_round
    met.meet(seen(4, 18_000, SLEEP), 2 * SECOND, of_child=False)
    assert met.goes_round


def polling(second: int, turns: int, *called: str) -> Sample:
    """A look at a thread that sleeps, asks and sleeps again; or is seen where that leads."""
    one = seen(second, turns, SLEEP)
    assert one.stack is not None
    main = one.stack.threads[0]
    frames = (*main.frames, *(Frame(name, "train.py", 7) for name in called))
    return replace(one, stack=replace(one.stack, threads=(replace(main, frames=frames),)))


@pytest.mark.parametrize(
    ("turns", "later", "new"),
    [
        pytest.param(10, (), [False, False], id="it passes through what it calls"),
        pytest.param(10, ("report",), [False, True], id="it stays there"),
        pytest.param(0, (), [True, False], id="it was never seen to come back"),
    ],
)
def test_one_look_that_meets_a_poll_elsewhere_is_nothing_new(
    turns: int, later: tuple[str, ...], new: list[bool]
) -> None:
    met = FunctionsMet()
    for second in (2, 3, 4):
        met.meet(polling(second, turns * second), 0, of_child=False)
    assert met.meet(polling(5, turns * 5, "report"), 2 * SECOND, of_child=False) is new[0]
    assert met.in_doubt is not new[0]
    assert met.meet(polling(6, turns * 6, *later), 2 * SECOND, of_child=False) is new[1]
