"""One lane a rank, or a group of equals: checkpoints, sections, steps, last progress, the stall.

Places are percentages of the time axis, so that the page can zoom without laying out anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.page.rank_history import SpanKind, longest_first, run_history
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks
from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from lightning_hangcheck.report.page.page_facts import PageFacts
    from lightning_hangcheck.report.page.rank_history import RankHistory, Span

MarkKind = Literal["checkpoint", "saved", "collective", "progress", "end"]
MOST_ITEMS = 1_200
"""Of all lanes together, some 150 bytes each on the page."""
DEEPEST = 2
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
MOST_TICKS = 7


class Bar(Struct, frozen=True, kw_only=True):
    """Something that lasts: its start and width in percent, and how many others it lies in."""

    kind: SpanKind
    left: float
    width: float
    depth: int
    title: str


class Mark(Struct, frozen=True, kw_only=True):
    """Something that happened at a moment."""

    kind: MarkKind
    left: float
    title: str


class Lane(Struct, frozen=True, kw_only=True):
    """What is known of a rank, or of one rank that stands for its equals."""

    name: str
    rank: int
    is_culprit: bool
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    left_out: int = 0


class Tick(Struct, frozen=True):
    """A label of the time axis."""

    left: float
    label: str


class Timeline(Struct, frozen=True, kw_only=True):
    """All lanes on one axis.

    Attributes:
        stall_left: Where the stall begins, in percent.
    """

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    begins_at: str
    seconds: float
    stall_left: float


def timeline(facts: PageFacts) -> Timeline | None:
    """Lay out the lanes; None where no time passed between the start and the verdict."""
    history = run_history(facts)
    if history is None:
        return None
    axis = _Axis(history.begins, history.ends)
    names = {group.ranks[0]: group.name for group in facts.groups}
    single = len(facts.shown) == len(facts.verdict.ranks) == facts.verdict.world_size
    most = max(20, MOST_ITEMS // max(1, len(facts.shown)))
    stalled = facts.verdict.stalled_since
    return Timeline(
        lanes=tuple(
            _lane(
                axis,
                one,
                name=name_ranks([rank]) if single else names.get(rank, name_ranks([rank])),
                is_culprit=rank in facts.verdict.culprits,
                most=most,
            )
            for rank, one in history.ranks.items()
        ),
        ticks=tuple(axis.ticks()),
        begins_at=facts.verdict.started_at,
        seconds=axis.seconds,
        stall_left=axis.place(read_utc(stalled)) if is_moment(stalled) and stalled else 100.0,
    )


class _Axis:
    """From the first moment that is told to that of the verdict."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin = begin
        self.seconds = (end - begin).total_seconds()

    def place(self, moment: datetime) -> float:
        share = (moment - self.begin).total_seconds() / self.seconds
        return round(100 * min(1.0, max(0.0, share)), 3)

    def ticks(self) -> Iterator[Tick]:
        step = next((one for one in TICKS if self.seconds / one <= MOST_TICKS), None)
        step = step or TICKS[-1] * (1 + int(self.seconds / TICKS[-1] / MOST_TICKS))
        for number in range(int(self.seconds // step) + 1):
            at = number * step
            yield Tick(
                round(100 * at / self.seconds, 3), f"{self.begin + timedelta(seconds=at):%H:%M:%S}"
            )


def _lane(axis: _Axis, history: RankHistory, *, name: str, is_culprit: bool, most: int) -> Lane:
    kept = longest_first(history.spans)[: most // 2]
    marks = list(_marks(history, axis))
    return Lane(
        name=name,
        rank=history.who.rank,
        is_culprit=is_culprit,
        bars=tuple(
            _bar(axis, span) for span in sorted(kept, key=lambda one: (one.depth, one.began))
        ),
        marks=tuple(marks[-most // 2 :]),
        left_out=max(0, len(history.spans) - most // 2) + max(0, len(marks) - most // 2),
    )


def _bar(axis: _Axis, span: Span) -> Bar:
    left = axis.place(span.began)
    named = f"{span.name}, not left" if span.kind == "open" else span.name
    each = f", {seconds_in_words(span.seconds / span.steps)} each" if span.steps > 1 else ""
    return Bar(
        kind=span.kind,
        left=left,
        width=round(axis.place(span.ended) - left, 3),
        depth=min(span.depth, DEEPEST),
        title=f"{named}: {seconds_in_words(span.seconds)} from {span.began:%H:%M:%S}{each}",
    )


def _marks(history: RankHistory, axis: _Axis) -> Iterator[Mark]:
    """Those that tell most come last: where there are too many, the first ones are left out."""
    for entered in history.collectives:
        title = f"{entered.group} #{entered.number} {entered.operation}"
        yield Mark(kind="collective", left=axis.place(entered.at), title=title)
    for one in history.happenings:
        yield Mark(kind=one.kind, left=axis.place(one.at), title=f"{one.at:%H:%M:%S} {one.name}")
