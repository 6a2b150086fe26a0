"""A loop of several functions moves through its code for ever, and gets nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import (
    IN_BARRIER,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    job,
    look,
    rank,
    user,
    worker,
)

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.case import Pace, RankView
from lightning_hangcheck.reading.activity.rank_activity import read_rank_activity

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessLook, ProcessState

DEEPER = (*IN_LOAD, user("pick", 52))
CROPPING = (*IN_GETITEM, user("crop", 9, "data.py"))
WAITS = rank(0, IN_BARRIER)
KNOWN = Pace(longest_pause_s=0.2, pauses=9)


def without_news(seconds: float, *children: ProcessLook, **fields: Any) -> RankView:
    """A rank that moves, and has shown nothing new for so long: its worker, or it itself."""
    stacks = (IN_LOADER,) if children else (IN_LOAD, DEEPER, IN_LOAD)
    view = rank(1, *stacks, children=children, cpu=0.0 if children else 1.0, **fields)
    return msgspec.structs.replace(view, nothing_new_for_s=seconds)


def cropping(**fields: Any) -> ProcessLook:
    return worker(0, IN_GETITEM, CROPPING, IN_GETITEM, cpu=1.0, **fields)


@pytest.mark.parametrize(
    ("view", "activity"),
    [
        (without_news(5.9), "moving"),
        (without_news(6.0), "busy"),
        (without_news(5.9, cropping()), "moving"),
        (without_news(6.0, cropping()), "busy"),
        (without_news(99.0, bytes_s=100_000), "moving"),
        (without_news(99.0, cropping(bytes_s=100_000)), "moving"),
    ],
)
def test_a_livelock_takes_some_time_to_know_and_moves_no_bytes(
    view: RankView, activity: str
) -> None:
    assert read_rank_activity(view).activity == activity


@pytest.mark.parametrize(("turns", "activity"), [((7, 7, 9), "moving"), ((7, 8, 9), "busy")])
def test_a_rank_that_was_just_woken_has_not_gone_round_while_it_slept(
    turns: tuple[int, ...], activity: str
) -> None:
    """A signal ends its wait: what it did in functions that it knew took no time until then."""
    view = rank(1, IN_LOAD, IN_LOAD, (*IN_LOAD[:-1], user("load", 43)))
    own = view.processes[0]
    samples = tuple(
        msgspec.structs.replace(one, kernel=with_turns(one.kernel, count))
        for one, count in zip(own.samples, turns, strict=True)
    )
    own = msgspec.structs.replace(own, samples=samples)
    view = msgspec.structs.replace(view, processes=(own,), nothing_new_for_s=40.0)
    assert read_rank_activity(view).activity == activity


def with_turns(kernel: ProcessState | None, count: int) -> ProcessState:
    """The state of a process whose main thread was given the processor so often."""
    assert kernel is not None
    main, *others = kernel.threads
    threads = (msgspec.structs.replace(main, turns=count), *others)
    return msgspec.structs.replace(kernel, threads=threads)


def test_what_a_child_without_python_stacks_does_may_be_no_livelock() -> None:
    program = look(IN_LOAD, pid=900, role="child", cpu=1.0)
    blind = tuple(msgspec.structs.replace(one, stack=None) for one in program.samples)
    assert read_rank_activity(
        without_news(99.0, msgspec.structs.replace(program, samples=blind))
    ).activity == ("moving")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(9.9, "healthy"), (10.0, "suspect"), (299.0, "suspect"), (300.0, "hang")],
)
@pytest.mark.parametrize("children", [(), (cropping(),)])
def test_a_livelock_is_called_a_hang_after_the_stall_timeout_however_fast_the_pace(
    seconds: float, told: str, children: tuple[ProcessLook, ...]
) -> None:
    assert judge(job(WAITS, without_news(seconds, *children, pace=KNOWN))).verdict == told


def test_the_worker_that_goes_round_is_named_with_its_line() -> None:
    verdict = judge(job(WAITS, without_news(300.0, cropping())))
    assert (verdict.culprits, verdict.cause) == ((1,), "dataloader_worker")
    assert "has waited 5 min for its next batch" in verdict.summary
    assert "worker pid 500 burns CPU in Samples.__getitem__" in verdict.summary


def test_a_rank_that_goes_round_spins() -> None:
    verdict = judge(job(WAITS, without_news(300.0)))
    assert (verdict.culprits, verdict.cause) == ((1,), "spinning")
    told = [item.text for item in verdict.evidence]
    assert "it moved, but for 5 min only among functions in which it had been before" in told


@pytest.mark.parametrize(("seconds", "told"), [(299.0, "healthy"), (300.0, "hang")])
def test_where_nobody_waits_one_that_goes_round_has_the_stall_timeout_too(
    seconds: float, told: str
) -> None:
    assert judge(job(without_news(seconds))).verdict == told
