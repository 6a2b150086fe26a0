"""Equal stacks are merged, whatever the number of ranks."""

from __future__ import annotations

from lightning_hangcheck.gather.stack_groups import group_stacks, latest_frames
from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessLook,
    ProcessStack,
    Sample,
    ThreadStack,
)

LOAD = (Frame("<module>", "/home/ada/train.py", 9), Frame("load", "/home/ada/train.py", 41))
STEP = (Frame("<module>", "/home/ada/train.py", 9), Frame("step", "/home/ada/train.py", 88))


def _look(*stacks: tuple[Frame, ...] | None, role: str = "rank") -> ProcessLook:
    """A process; None is a sample without a stack."""
    return ProcessLook(
        pid=1,
        role=role,
        samples=tuple(
            Sample(
                taken_ns=number,
                stack=None
                if frames is None
                else ProcessStack(
                    pid=1, source="py-spy", threads=(ThreadStack(tid=1, frames=frames),)
                ),
            )
            for number, frames in enumerate(stacks)
        ),
    )


def _case(*processes: tuple[ProcessLook, ...]) -> Case:
    run = RunFacts(run_id="r", command="c", started_at="2026-11-20T10:23:01Z")
    ranks = tuple(RankView(rank=n, processes=looks) for n, looks in enumerate(processes))
    return Case(run=run, taken_at="2026-11-20T10:23:01Z", taken_ns=0, ranks=ranks)


def test_equal_stacks_are_one_group_and_the_largest_comes_first() -> None:
    groups, group_of = group_stacks(_case((_look(LOAD),), (_look(STEP),), (_look(STEP),)))
    assert [(group.id, group.ranks, group.count) for group in groups] == [
        (0, "1-2", 2),
        (1, "0", 1),
    ]
    assert groups[1].frames == ("<module> (/home/ada/train.py:9)", "load (/home/ada/train.py:41)")
    assert group_of == {0: 1, 1: 0, 2: 0}


def test_the_newest_stack_counts_even_if_the_last_sample_has_none() -> None:
    assert latest_frames(_look(LOAD, STEP, None)) == STEP
    assert latest_frames(_look(None)) == ()


def test_workers_are_grouped_apart_from_ranks_and_counted_each() -> None:
    worker = _look(STEP, role="worker")
    groups, group_of = group_stacks(_case((_look(STEP), worker, worker), (_look(STEP), worker)))
    assert [(group.process, group.ranks, group.count) for group in groups] == [
        ("worker", "0-1", 3),
        ("rank", "0-1", 2),
    ]
    assert group_of == {0: 1, 1: 1}


def test_other_programs_and_ranks_without_a_stack_have_no_group() -> None:
    groups, group_of = group_stacks(
        _case(
            (_look(None), _look(LOAD, role="child")),
        )
    )
    assert groups == ()
    assert group_of == {}


def test_a_rank_that_was_seen_twice_counts_once() -> None:
    case = _case((_look(LOAD),))
    twice = Case(run=case.run, taken_at=case.taken_at, taken_ns=0, ranks=case.ranks * 2)
    groups, _ = group_stacks(twice)
    assert [group.count for group in groups] == [1]
