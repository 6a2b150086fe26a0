"""Who waited and who worked, counted over a few looks."""

from __future__ import annotations

from cases import IN_ALL_REDUCE, IN_BACKWARD, IN_LOAD, look

from lightning_hangcheck.look.sample import Look, Target
from lightning_hangcheck.model.beat import Slowness, SlowRank, StepTimes
from lightning_hangcheck.watch.pace import GLANCES, Glances

SLOW = Slowness(
    for_s=200.0,
    ranks=tuple(
        SlowRank(rank=rank, before=StepTimes(), now=StepTimes(), known_s=1.0, level_s=9.0)
        for rank in (0, 1)
    ),
)


def seen(*stacks: tuple, state: str = "S") -> Look:
    """One look at rank 0, rank 1, and so on."""
    samples = [look(frames, state=state).samples[-1] for frames in stacks]
    return Look(
        samples=tuple(
            (Target(rank=rank, pid=100 + rank, role="rank"), sample)
            for rank, sample in enumerate(samples)
        ),
        gaps=(),
    )


def test_ranks_in_a_collective_wait_and_others_work_at_a_line() -> None:
    glances = Glances()
    for _ in range(GLANCES - 1):
        glances.take(seen(IN_ALL_REDUCE, IN_LOAD))
    assert not glances.enough
    glances.take(seen(IN_LOAD, IN_ALL_REDUCE))
    assert glances.enough
    waits, works = glances.added_to(SLOW).ranks
    assert (waits.looks, waits.waited) == (GLANCES, GLANCES - 1)
    assert (works.looks, works.waited, works.place) == (GLANCES, 1, IN_LOAD[-1])


def test_backward_waits_only_where_it_sleeps() -> None:
    glances = Glances()
    glances.take(seen(IN_BACKWARD, state="R"))
    assert glances.added_to(SLOW).ranks[0].waited == 0
    glances.take(seen(IN_BACKWARD, state="S"))
    assert glances.added_to(SLOW).ranks[0].waited == 1
