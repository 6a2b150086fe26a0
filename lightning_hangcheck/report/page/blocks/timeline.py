"""One lane a rank, or a group of equals: checkpoints, sections, last progress and the stall.

Places are percentages of the time axis, so that the page can zoom without laying out anew. Moments
are those of each rank's own host.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.report.page.blocks.identities import views_of
from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.rank_rows import name_ranks
from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.moments import moment_of, read_utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.report.page.page_facts import Entry, PageFacts

MarkKind = Literal["checkpoint", "saved", "collective", "progress", "end"]
BarKind = Literal["section", "open", "stall"]
MOST_ITEMS = 1_200
"""Of all lanes together, some 150 bytes each on the page."""
MOST_COLLECTIVES = 20
DEEPEST = 2
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
MOST_TICKS = 7


class Bar(Struct, frozen=True, kw_only=True):
    """Something that lasts: its start and width in percent, and how many others it lies in."""

    kind: BarKind
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
    axis = _Axis.of(facts)
    if axis is None:
        return None
    views = views_of(facts)
    names = {group.ranks[0]: group.name for group in facts.groups}
    single = len(facts.shown) == len(facts.verdict.ranks) == facts.verdict.world_size
    most = max(20, MOST_ITEMS // max(1, len(facts.shown)))
    stalled = facts.verdict.stalled_since
    return Timeline(
        lanes=tuple(
            _lane(
                facts,
                axis,
                rank,
                views.get(rank),
                name_ranks([rank]) if single else names.get(rank, name_ranks([rank])),
                most,
            )
            for rank in facts.shown
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
        self.end = end
        self.seconds = (end - begin).total_seconds()

    @classmethod
    def of(cls, facts: PageFacts) -> _Axis | None:
        told = [
            read_utc(entries[0]["at"])
            for entries in facts.journals.values()
            if entries and is_moment(entries[0].get("at"))
        ]
        taken_at = facts.case.taken_at if facts.case is not None else ""
        ends = [text for text in (taken_at, facts.verdict.detected_at) if is_moment(text)]
        if not told and is_moment(facts.verdict.started_at):
            told = [read_utc(facts.verdict.started_at)]
        if not told or not ends:
            return None
        begin, end = min(told), max(map(read_utc, ends))
        return cls(begin, end) if end > begin else None

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


def _lane(
    facts: PageFacts, axis: _Axis, rank: int, view: RankView | None, name: str, most: int
) -> Lane:
    entries = [entry for entry in facts.journals.get(rank, ()) if is_moment(entry.get("at"))]
    bars = list(_sections(entries, axis))
    marks = list(_marks(entries, axis))
    if view is not None and facts.case is not None:
        bars += _stall(view, read_utc(facts.case.taken_at), axis)
        marks += _seen(view, read_utc(facts.case.taken_at), axis)
    kept = sorted(bars, key=lambda bar: (bar.kind == "section", -bar.width))[: most // 2]
    return Lane(
        name=name,
        rank=rank,
        is_culprit=rank in facts.verdict.culprits,
        bars=tuple(sorted(kept, key=lambda bar: bar.depth)),
        marks=tuple(marks[-most // 2 :]),
        left_out=max(0, len(bars) - most // 2) + max(0, len(marks) - most // 2),
    )


def _sections(entries: Sequence[Entry], axis: _Axis) -> Iterator[Bar]:
    """A section that began and did not end goes on until the verdict."""
    open_ones: list[tuple[str, datetime]] = []
    for entry in entries:
        kind, name = entry.get("kind"), plain(str(entry.get("name", "")))
        moment = read_utc(entry["at"])
        if kind == "section_begin":
            open_ones.append((name, moment))
        elif kind in ("section_end", "section_raised"):
            at = next((i for i in reversed(range(len(open_ones))) if open_ones[i][0] == name), None)
            if at is not None:
                _, began = open_ones.pop(at)
                yield _bar(axis, "section", name, began, moment, at)
        elif kind == "start":
            open_ones.clear()
    for depth, (name, began) in enumerate(open_ones):
        yield _bar(axis, "open", f"{name}, not left", began, axis.end, depth)


def _bar(
    axis: _Axis, kind: BarKind, name: str, began: datetime, ended: datetime, depth: int
) -> Bar:
    left = axis.place(began)
    lasted = seconds_in_words(max(0.0, (ended - began).total_seconds()))
    return Bar(
        kind=kind,
        left=left,
        width=round(axis.place(ended) - left, 3),
        depth=min(depth, DEEPEST),
        title=f"{name}: {lasted} from {began:%H:%M:%S}",
    )


def _marks(entries: Iterable[Entry], axis: _Axis) -> Iterator[Mark]:
    for entry in entries:
        kind, moment = entry.get("kind"), read_utc(entry["at"])
        title = ""
        shown: MarkKind = "checkpoint"
        if kind == "checkpoint":
            title = f"checkpoint {entry.get('number')}: {entry.get('name')}"
        elif kind in ("saved", "resumed"):
            shown, title = "saved", f"{kind} at step {entry.get('step')}"
        elif kind in ("raised", "finished"):
            shown, title = "end", f"{kind} {entry.get('error', '')}"
        if title:
            yield Mark(
                kind=shown, left=axis.place(moment), title=plain(f"{moment:%H:%M:%S} {title}")
            )


def _stall(view: RankView, taken: datetime, axis: _Axis) -> Iterator[Bar]:
    if view.process_exit is None and view.silent_for_s > 0:
        began = taken - timedelta(seconds=view.silent_for_s)
        yield _bar(axis, "stall", "no progress", began, taken, 0)


def _seen(view: RankView, taken: datetime, axis: _Axis) -> Iterator[Mark]:
    """The last progress with its step, the last collectives, and the end of the process."""
    for record in view.flight.groups if view.flight is not None else ():
        for entry in record.entries[-MOST_COLLECTIVES:]:
            if entry.created_ns > 0:
                title = f"{record.description or record.group} #{entry.seq} {entry.op}"
                moment = moment_of(entry.created_ns)
                yield Mark(kind="collective", left=axis.place(moment), title=plain(title))
    if view.process_exit is not None:
        at = read_utc(view.process_exit.at) if is_moment(view.process_exit.at) else taken
        code = view.process_exit.exit_code
        yield Mark(kind="end", left=axis.place(at), title=f"process ended, exit code {code}")
        return
    step = view.beat.step if view.beat is not None else None
    at = taken - timedelta(seconds=view.silent_for_s)
    told = "" if step is None else f", step {step}"
    yield Mark(kind="progress", left=axis.place(at), title=f"{at:%H:%M:%S} last progress{told}")
