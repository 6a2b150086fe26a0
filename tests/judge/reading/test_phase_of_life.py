"""Where in its life a rank is that nothing places: by what it has done so far."""

from __future__ import annotations

from typing import Any

import pytest
from cases import IN_LOAD, gone, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge.job import read_job
from lightning_hangcheck.judge.phase_of_life import phase_of_life
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import CodeNote, RankView
from lightning_hangcheck.model.flight import (
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
    MessageCounts,
)


def reductions(*ops: str) -> FlightRecord:
    entries = tuple(
        CollectiveEntry(seq=number, op=op, sizes=((4,),)) for number, op in enumerate(ops)
    )
    return FlightRecord(taken_ns=1, groups=(CollectiveRecord(group="0", entries=entries),))


@pytest.mark.parametrize(
    ("known", "phase"),
    [
        ({}, "startup"),
        ({"flight": reductions("barrier", "barrier", "all_reduce")}, "startup"),
        ({"flight": reductions("all_reduce", "barrier", "all_reduce")}, "training_step"),
        ({"flight": reductions(*["all_gather"] * 9)}, "startup"),
        ({"flight": reductions(*["all_gather"] * 10)}, "training_step"),
        ({"flight": reductions(*["broadcast"] * 40)}, "startup"),
        ({"flight": FlightRecord(taken_ns=1, messages=MessageCounts(sent={1: 9}))}, "startup"),
        (
            {"flight": FlightRecord(taken_ns=1, messages=MessageCounts(sent={1: 10}))},
            "training_step",
        ),
        ({"beat": Beat(pid=1, phase="startup", step=3)}, "training_step"),
        ({"beat": Beat(pid=1, phase="startup", step=3, ending="finished")}, "teardown"),
        ({"beat": Beat(pid=1, beats=4)}, "training_step"),
        ({"beat": Beat(pid=1)}, "startup"),
        ({"beat": Beat(pid=1, phase="dataloading", step=3)}, "training_step"),
    ],
)
def test_a_rank_that_nothing_places_is_where_its_life_is(known: dict[str, Any], phase: str) -> None:
    found = phase_of_life(RankView(rank=0, pid=1, **known), IN_LOAD)
    assert found is not None
    assert (found.phase, found.told_by) == (phase, "life")


@pytest.mark.parametrize(("ended", "phase"), [(1, "startup"), (2, "training_step")])
def test_a_rank_that_cannot_be_asked_has_stepped_with_the_others(ended: int, phase: str) -> None:
    """A stopped process answers nothing; of what it had a part in, the others' records tell."""
    flight = reductions("all_reduce", "all_reduce")
    group = replace(flight.groups[0], ranks=(0, 1), last_completed=ended)
    asked = replace(rank(0, IN_LOAD), flight=replace(flight, groups=(group,)))
    assert read_job(job(asked, rank(1, IN_LOAD, state="T"))).ranks[1].phase == phase


@pytest.mark.parametrize(
    ("known", "phase"), [((), "training_step"), ("1", "training_step"), ("0", None)]
)
def test_a_rank_killed_soon_after_it_was_last_asked_has_stepped_with_the_others(
    known: tuple[str, ...], phase: str | None
) -> None:
    """Its record is from before it joined the group; had it joined, its record would tell."""
    flight = reductions("all_reduce", "all_reduce")
    group = replace(flight.groups[0], ranks=(0, 1), last_completed=2)
    asked = replace(rank(0, IN_LOAD), flight=replace(flight, groups=(group,)))
    joined = tuple(CollectiveRecord(group=name) for name in known)
    killed = replace(gone(1, -9), flight=FlightRecord(taken_ns=1, groups=joined))
    assert read_job(job(asked, killed)).ranks[1].phase == phase


def test_of_a_rank_that_is_gone_its_steps_are_still_known() -> None:
    left = replace(gone(0, 0), flight=reductions("all_reduce", "all_reduce"))
    assert read_job(job(left)).ranks[0].phase == "training_step"
    assert read_job(job(gone(0, 0))).ranks[0].phase is None


def test_of_a_rank_that_never_came_no_phase_is_known() -> None:
    assert phase_of_life(RankView(rank=0), ()) is None


@pytest.mark.parametrize(("after", "phase"), [(True, "training_step"), (False, "startup")])
def test_a_job_that_tells_nothing_has_stepped_where_its_code_stands_behind_a_step(
    *, after: bool, phase: str
) -> None:
    note = CodeNote(file=IN_LOAD[0].file, line=IN_LOAD[0].line, after_backward=after)
    assert read_job(job(rank(0, IN_LOAD), code=(note,))).ranks[0].phase == phase
