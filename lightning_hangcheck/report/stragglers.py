"""Finds stragglers in a job that does not hang: work per rank, and its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.beat import PARTS, StepTimes
from lightning_hangcheck.report.paragraphs import INDENT, LABEL_WIDTH
from lightning_hangcheck.text.shown import seconds_in_words as words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.model.case import Case

LEAST_STEPS = 10  # Minimum timed steps for a mean.
ALIKE = 1.1
"""Below this ratio ranks are alike: the mean of few steps varies by as much."""


class RankSteps(Struct, frozen=True, kw_only=True):
    """The steps of one rank.

    Attributes:
        ratio: Its own work, relative to the median rank's.
    """

    rank: int
    steps: int
    mean: StepTimes
    ratio: float


class Stragglers(Struct, frozen=True, kw_only=True):
    """The steps of all ranks that time them, most work of its own first.

    Attributes:
        typical: Mean step of the rank with the median own work.
    """

    ranks: tuple[RankSteps, ...]
    typical: StepTimes

    @property
    def stands_out(self) -> bool:
        """Whether the slowest rank has clearly more work of its own than the others."""
        return len(self.ranks) > 1 and self.ranks[0].ratio >= ALIKE


def find_stragglers(case: Case | None) -> Stragglers | None:
    """Compare the ranks' steps; None if too few were timed."""
    views = {view.rank: view for view in (case.ranks if case is not None else ())}
    sums = {rank: view.beat.step_times for rank, view in views.items() if view.beat is not None}
    return compared({rank: own for rank, own in sums.items() if own and own.steps >= LEAST_STEPS})


def compared(sums: Mapping[int, StepTimes]) -> Stragglers | None:
    """Compare ranks by their steps; None without ranks."""
    if not sums:
        return None
    means = {rank: times.a_step() for rank, times in sums.items()}
    # of two ranks the one with less work
    typical = sorted(means.values(), key=lambda mean: mean.own_s)[(len(means) - 1) // 2]
    ranks = [
        RankSteps(
            rank=rank,
            steps=sums[rank].steps,
            mean=mean,
            ratio=mean.own_s / typical.own_s if typical.own_s > 0 else 1.0,
        )
        for rank, mean in sorted(means.items(), key=lambda item: -item[1].own_s)
    ]
    return Stragglers(ranks=tuple(ranks), typical=typical)


def slower_part(mean: StepTimes, typical: StepTimes) -> str:
    """Name the part of its own work in which a rank most exceeds the typical step."""
    longer = (mean.loader_s - typical.loader_s, mean.forward_s - typical.forward_s)
    return PARTS[longer.index(max(longer))]


def stragglers_lines(found: Stragglers | None) -> list[str]:
    """Write two lines: the slowest rank, and its parts of a step."""
    if found is None:
        return []

    def in_parts(mean: StepTimes) -> str:
        pairs = zip(PARTS, mean.parts, strict=True)
        return ", ".join(f"{name} {words(seconds)}" for name, seconds in pairs)

    slowest, typical = found.ranks[0], found.typical
    steps = f"{slowest.steps} timed, {words(slowest.mean.seconds)} each"
    where = in_parts(typical)
    if found.stands_out:
        steps += (
            f"; slowest is rank {slowest.rank}: {words(slowest.mean.own_s)} of its own, "
            f"{slowest.ratio:.1f} times the median rank's {words(typical.own_s)}"
        )
        where = f"rank {slowest.rank}: {in_parts(slowest.mean)}; median: {where}"
    elif len(found.ranks) > 1:
        steps += f"; all {len(found.ranks)} ranks are alike"
    rows = {"steps": steps, "where": where}
    return [f"{INDENT}{label:<{LABEL_WIDTH}}{text}" for label, text in rows.items()]
