"""Finds stragglers in a job that does not hang: work per rank, its parts, and the trend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.beat import PARTS, StepTimes
from lightning_hangcheck.report.paragraphs import INDENT, LABEL_WIDTH
from lightning_hangcheck.text.shown import seconds_in_words as words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.model.case import Case, RankView

LEAST_STEPS = 10  # Minimum timed steps for a mean.
ALIKE = 1.1
"""Below this ratio ranks are alike: the mean of few steps varies by as much."""
Trend = tuple[StepTimes, StepTimes]  # Mean step in the first quarter of the run, and in the last.


class RankSteps(Struct, frozen=True, kw_only=True):
    """The steps of one rank.

    Attributes:
        ratio: Its own work, relative to the median rank's.
        trend: None if too few steps were timed.
    """

    rank: int
    steps: int
    mean: StepTimes
    ratio: float
    trend: Trend | None


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
    sums = {rank: _sums(view) for rank, view in views.items()}
    timed = {rank: times for rank, times in sums.items() if times.steps >= LEAST_STEPS}
    return compared(timed, {rank: _trend(views[rank]) for rank in timed})


def compared(
    sums: Mapping[int, StepTimes], trends: Mapping[int, Trend | None] | None = None
) -> Stragglers | None:
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
            trend=(trends or {}).get(rank),
        )
        for rank, mean in sorted(means.items(), key=lambda item: -item[1].own_s)
    ]
    return Stragglers(ranks=tuple(ranks), typical=typical)


def slower_part(mean: StepTimes, typical: StepTimes) -> str:
    """Name the part of its own work in which a rank most exceeds the typical step."""
    longer = (mean.loader_s - typical.loader_s, mean.forward_s - typical.forward_s)
    return PARTS[longer.index(max(longer))]


def stragglers_lines(found: Stragglers | None) -> list[str]:
    """Write at most three lines: the slowest rank, its parts of a step, and the trend."""
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
    trend = {} if slowest.trend is None else {"trend": trend_words(slowest.trend)}
    rows = {"steps": steps, "where": where, **trend}
    return [f"{INDENT}{label:<{LABEL_WIDTH}}{text}" for label, text in rows.items()]


def trend_words(trend: Trend) -> str:
    """Say how a rank's step changed, and in which part most."""
    first, last = trend
    whole = f"{words(first.seconds)} at first, {words(last.seconds)} in the end"
    shorter, longer = sorted((first.seconds, last.seconds))
    if longer < ALIKE * shorter:
        return f"even: {whole}"
    parts = zip(PARTS, first.parts, last.parts, strict=True)
    name, before, after = max(parts, key=lambda part: abs(part[2] - part[1]))
    return f"{whole}; most in {name}: {words(before)}, then {words(after)}"


def _sums(view: RankView) -> StepTimes:
    return (view.beat.step_times if view.beat is not None else None) or StepTimes()


def _trend(view: RankView) -> Trend | None:
    """Compare the first and last quarter, by the marks nearest to them."""
    marks = (*view.step_sums, _sums(view))
    quarter = len(marks) // 4
    if quarter < 1 or marks[-1].steps < 2 * LEAST_STEPS:
        return None
    first, last = marks[quarter].since(marks[0]), marks[-1].since(marks[-1 - quarter])
    return (first.a_step(), last.a_step()) if min(first.steps, last.steps) >= 1 else None
