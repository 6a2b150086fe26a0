"""Steps of the ranks, the slowest first: what a step is made of, and how it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.stragglers import find_stragglers, trend_words
from lightning_hangcheck.text.amounts import seconds_in_words

if TYPE_CHECKING:
    from lightning_hangcheck.model.step_times import StepTimes
    from lightning_hangcheck.report.page.page_facts import PageFacts

MOST_ROWS = 16


class StepRow(Struct, frozen=True, kw_only=True):
    """A rank's mean step, as text.

    Attributes:
        rank: None of the row of the median rank.
        stands_out: It has more work of its own than the others.
    """

    rank: int | None
    steps: str
    step: str
    loader: str
    forward: str
    rest: str
    ratio: str
    trend: str
    stands_out: bool


class StepTable(Struct, frozen=True):
    """The rows that are shown, and how many ranks are not."""

    rows: tuple[StepRow, ...]
    left_out: int


def step_table(facts: PageFacts) -> StepTable | None:
    """Lay out the slowest ranks and the median one; None where no rank has timed its steps."""
    found = find_stragglers(facts.case)
    if found is None:
        return None
    rows = [
        _row(
            one.mean,
            rank=one.rank,
            steps=str(one.steps),
            ratio=f"{one.ratio:.1f}",
            trend=trend_words(one.trend) if one.trend is not None else "",
            stands_out=found.stands_out and one is found.ranks[0],
        )
        for one in found.ranks[:MOST_ROWS]
    ]
    if len(found.ranks) > 1:
        rows.append(_row(found.typical))
    return StepTable(tuple(rows), max(0, len(found.ranks) - MOST_ROWS))


def _row(
    mean: StepTimes,
    *,
    rank: int | None = None,
    steps: str = "",
    ratio: str = "",
    trend: str = "",
    stands_out: bool = False,
) -> StepRow:
    return StepRow(
        rank=rank,
        steps=steps,
        step=seconds_in_words(mean.seconds),
        loader=seconds_in_words(mean.loader_s),
        forward=seconds_in_words(mean.forward_s),
        rest=seconds_in_words(mean.rest_s),
        ratio=ratio,
        trend=trend,
        stands_out=stands_out,
    )
