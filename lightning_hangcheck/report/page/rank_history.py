"""What happened to each rank in order of time, for lanes and traces alike: journal and case as one.

Moments are those of each rank's own host. Within one process they follow its monotonic clock, so
that no correction of the wall clock turns them back.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from lightning_hangcheck.report.page.blocks.identities import Identity, identities, views_of
from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.text.moments import moment_of, read_utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.report.page.page_facts import Entry, PageFacts

SpanKind = Literal["section", "open", "steps", "stall"]
HappeningKind = Literal["checkpoint", "saved", "progress", "end"]
MOST_COLLECTIVES = 20
"""Of each group, the newest."""
UNNAMED = "undefined"
"""What torch says of a group to which the program gave no description."""


class Span(Struct, frozen=True, kw_only=True):
    """Something that lasted, or lasts until the verdict.

    Attributes:
        kind: ``open`` is a section that was not left.
        depth: In how many other sections it lies.
        steps: How many steps it is of.
    """

    kind: SpanKind
    name: str
    began: datetime
    ended: datetime
    depth: int = 0
    steps: int = 0

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return max(0.0, (self.ended - self.began).total_seconds())


class Happening(Struct, frozen=True, kw_only=True):
    """Something that happened at a moment."""

    kind: HappeningKind
    name: str
    at: datetime


class EnteredCollective(Struct, frozen=True, kw_only=True):
    """A collective operation that the rank entered."""

    group: str
    number: int
    operation: str
    at: datetime
    ended: bool


class RankHistory(Struct, frozen=True, kw_only=True):
    """One rank; each of the lists in the order in which it was told.

    Attributes:
        gone_at: When its process ended; None of one that was there when the evidence was taken.
    """

    who: Identity
    gone_at: datetime | None = None
    spans: tuple[Span, ...] = ()
    happenings: tuple[Happening, ...] = ()
    collectives: tuple[EnteredCollective, ...] = ()


class RunHistory(Struct, frozen=True, kw_only=True):
    """All ranks that the facts tell of, from the first moment that is told to the verdict."""

    begins: datetime
    ends: datetime
    ranks: dict[int, RankHistory]


def run_history(facts: PageFacts) -> RunHistory | None:
    """Put together what happened; None where no time passed between the start and the verdict."""
    timed = {rank: list(_timed(entries)) for rank, entries in facts.journals.items()}
    taken = _moment(facts.case.taken_at) if facts.case is not None else None
    ends = [at for at in (taken, _moment(facts.verdict.detected_at)) if at is not None]
    begins = [entries[0].at for entries in timed.values() if entries]
    started = _moment(facts.verdict.started_at)
    begins = begins or ([started] if started is not None else [])
    if not begins or not ends or min(begins) >= max(ends):
        return None
    views = views_of(facts)
    known = identities(facts)
    return RunHistory(
        begins=min(begins),
        ends=max(ends),
        ranks={
            rank: _history(known[rank], timed.get(rank, ()), views.get(rank), taken, max(ends))
            for rank in facts.shown
        },
    )


def longest_first(spans: Iterable[Span]) -> list[Span]:
    """Order spans by what they tell where not all can be shown; what ended well comes last."""
    return sorted(spans, key=lambda span: (span.kind in ("section", "steps"), -span.seconds))


def group_title(name: str, description: str) -> str:
    """Name a process group: as torch numbers it, and as the program calls it."""
    return plain(f"{name} {'' if description == UNNAMED else description}".strip())


class _Timed(NamedTuple):
    at: datetime
    entry: Entry


_Process = tuple[str, int]


class _Clock(NamedTuple):
    """A moment of a process by both of its clocks."""

    at: datetime
    ns: int


def _moment(text: str) -> datetime | None:
    return read_utc(text) if is_moment(text) else None


def _timed(entries: Sequence[Entry]) -> Iterator[_Timed]:
    """Give each entry its moment; one that tells none is left out."""
    told = [entry for entry in entries if is_moment(entry.get("at"))]
    newest: dict[_Process, _Clock] = {}
    for entry in told:
        process, ns = _process(entry), entry.get("ns")
        if process is not None and isinstance(ns, int):
            newest[process] = _Clock(read_utc(entry["at"]), ns)
    for entry in told:
        yield _Timed(_by_one_clock(entry, newest), entry)


def _process(entry: Entry) -> _Process | None:
    """Host and process id: containers number their processes alike."""
    pid = entry.get("pid")
    return (str(entry.get("host", "")), pid) if isinstance(pid, int) else None


def _by_one_clock(entry: Entry, newest: dict[_Process, _Clock]) -> datetime:
    at, process, ns = read_utc(entry["at"]), _process(entry), entry.get("ns")
    if process is None or not isinstance(ns, int):
        return at
    clock = newest[process]
    try:
        return clock.at + timedelta(microseconds=(ns - clock.ns) // 1000)
    except OverflowError:  # no clock of a machine: the line is somebody else's
        return at


def _history(
    who: Identity,
    entries: Sequence[_Timed],
    view: RankView | None,
    taken: datetime | None,
    end: datetime,
) -> RankHistory:
    gone_at = _gone_at(view, taken)
    spans = list(_sections(entries, gone_at or end))
    happenings = list(_told(entries))
    marks = list(_saved_steps(entries))
    if view is None or taken is None:
        return RankHistory(who=who, spans=(*spans, *_steps(marks)), happenings=tuple(happenings))
    return RankHistory(
        who=who,
        gone_at=gone_at,
        spans=(*spans, *_steps([*marks, *_seen_steps(view, taken)]), *_stall(view, taken)),
        happenings=(*happenings, _last(view, taken)),
        collectives=tuple(_collectives(view)),
    )


def _gone_at(view: RankView | None, taken: datetime | None) -> datetime | None:
    gone = view.process_exit if view is not None else None
    return None if gone is None else _moment(gone.at) or taken


def _sections(entries: Sequence[_Timed], end: datetime) -> Iterator[Span]:
    """A section that began and did not end goes on until the verdict.

    Of one that was open where lines are missing nobody knows.
    """
    open_ones: list[tuple[str, datetime]] = []
    for at, entry in entries:
        kind, name = entry.get("kind"), plain(str(entry.get("name", "")))
        if kind == "section_begin":
            open_ones.append((name, at))
        elif kind in ("section_end", "section_raised"):
            place = next(
                (i for i in reversed(range(len(open_ones))) if open_ones[i][0] == name), None
            )
            if place is not None:
                _, began = open_ones.pop(place)
                yield Span(kind="section", name=name, began=began, ended=at, depth=place)
        elif kind in ("start", "dropped"):
            open_ones.clear()
    for depth, (name, began) in enumerate(open_ones):
        yield Span(kind="open", name=name, began=began, ended=max(began, end), depth=depth)


def _told(entries: Sequence[_Timed]) -> Iterator[Happening]:
    for at, entry in entries:
        kind = entry.get("kind")
        if kind == "checkpoint":
            name = plain(f"checkpoint {entry.get('number')}: {entry.get('name')}")
            yield Happening(kind="checkpoint", name=name, at=at)
        elif kind in ("saved", "resumed"):
            name = plain(f"{kind} at step {entry.get('step')}")
            yield Happening(kind="saved", name=name, at=at)
        elif kind in ("raised", "finished"):
            name = plain(f"{kind} {entry.get('last_words', '')}")
            yield Happening(kind="end", name=name, at=at)


class _StepMark(NamedTuple):
    """At this moment the rank had made so many steps."""

    at: datetime
    step: int


def _saved_steps(entries: Sequence[_Timed]) -> Iterator[_StepMark]:
    for at, entry in entries:
        step = entry.get("step")
        if entry.get("kind") in ("saved", "resumed") and isinstance(step, int):
            yield _StepMark(at, step)


def _seen_steps(view: RankView, taken: datetime) -> Iterator[_StepMark]:
    """The newest that its watcher saw made, and before them the first that it saw."""
    for mark in view.steps:
        yield _StepMark(taken - timedelta(seconds=mark.ago_s), mark.step)
    if not view.steps or view.spent is None:
        return
    newest, spent = view.steps[-1], view.spent
    began = taken - timedelta(seconds=newest.ago_s + spent.training_s)
    yield _StepMark(began, newest.step - spent.steps)


def _steps(marks: Iterable[_StepMark]) -> Iterator[Span]:
    """What lies between two moments at which a count of steps is known."""
    for before, after in pairwise(sorted(set(marks))):
        made = after.step - before.step
        if made > 0:
            first = before.step + 1
            name = f"step {after.step}" if made == 1 else f"steps {first}-{after.step}"
            yield Span(kind="steps", name=name, began=before.at, ended=after.at, steps=made)


def _stall(view: RankView, taken: datetime) -> Iterator[Span]:
    if view.process_exit is None and view.silent_for_s > 0:
        began = taken - timedelta(seconds=view.silent_for_s)
        yield Span(kind="stall", name="no progress", began=began, ended=taken)


def _last(view: RankView, taken: datetime) -> Happening:
    """The last progress with its step, or the end of the process."""
    if view.process_exit is not None:
        name = f"process ended, exit code {view.process_exit.exit_code}"
        return Happening(kind="end", name=name, at=_gone_at(view, taken) or taken)
    step = view.beat.step if view.beat is not None else None
    told = "" if step is None else f", step {step}"
    at = taken - timedelta(seconds=view.silent_for_s)
    return Happening(kind="progress", name=f"last progress{told}", at=at)


def _collectives(view: RankView) -> Iterator[EnteredCollective]:
    for record in view.flight.groups if view.flight is not None else ():
        for entry in record.entries[-MOST_COLLECTIVES:]:
            if entry.created_ns > 0:
                yield EnteredCollective(
                    group=group_title(record.group, record.description),
                    number=entry.seq,
                    operation=plain(entry.op),
                    at=moment_of(entry.created_ns),
                    ended=record.has_ended(entry),
                )
