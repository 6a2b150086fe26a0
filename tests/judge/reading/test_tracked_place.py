"""A rank in a tracked loop is named with its step and item."""

from __future__ import annotations

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.frames import tracked_place
from lightning_hangcheck.model.beat import Beat, OpenSection

LOOP = OpenSection("simulation", 0, 41)
EPOCHS = OpenSection("epochs", 0, 3)
STEP = OpenSection("get observation", 0)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ((LOOP, STEP), 'in step "get observation" of "simulation", item 41'),
        ((LOOP,), 'in "simulation", item 41'),
        ((EPOCHS, LOOP, STEP), 'in step "get observation" of "simulation", item 41'),
        ((STEP, LOOP), 'in "simulation", item 41'),
        ((STEP,), ""),
        ((), ""),
    ],
)
def test_the_innermost_loop_and_step_are_named(
    sections: tuple[OpenSection, ...], said: str
) -> None:
    assert tracked_place(Beat(pid=1, sections=sections)) == said
    assert tracked_place(None) == ""


def test_the_summary_names_the_step_of_the_culprit_not_of_its_victims() -> None:
    stuck = Beat(pid=101, beats=80, sections=(LOOP, STEP))
    waiting = Beat(pid=100, beats=80, sections=(LOOP, OpenSection("share reward", 0)))
    verdict = judge(job(rank(0, IN_ALL_REDUCE, beat=waiting), rank(1, IN_LOAD, beat=stuck)))
    assert verdict.culprits == (1,)
    assert ', in step "get observation" of "simulation", item 41; rank 0 waits' in verdict.summary
    assert "share reward" not in verdict.summary
    rows = {row.rank: row.open_sections for row in verdict.ranks}
    assert rows[1] == ("simulation, item 41", "get observation")
