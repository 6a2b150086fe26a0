"""What happened when: who the ranks are, the history of each, and the lanes that show it."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text import name_ranks
from lightning_hangcheck.text.shown import moment_of, read_utc, seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.report.page.page_facts import Entry, PageFacts


class Identity(Struct, frozen=True, kw_only=True):
    """A rank's process; what is not known of it is empty."""

    rank: int
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    command: str = ""
    started_at: str = ""
    state: str = ""
    phase: str = ""
    step: int | None = None
    checkpoint: str = ""
    sections: tuple[str, ...] = ()


def identities(facts: PageFacts) -> dict[int, Identity]:
    """Return who each rank is that the page tells of by itself."""
    states = {state.rank: state for state in facts.verdict.ranks}
    views = views_of(facts)
    found = {}
    for rank in facts.shown:
        state = states.get(rank)
        view = views.get(rank)
        command, started = _start(facts, rank)
        mark = state.last_checkpoint if state is not None else None
        found[rank] = Identity(
            rank=rank,
            local_rank=state.local_rank if state is not None else None,
            host=(state.host if state is not None else "") or (view.host if view else ""),
            pid=state.pid if state is not None else None,
            command=command or facts.verdict.command,
            started_at=started,
            state=state.state if state is not None else "",
            phase=(state.phase or "") if state is not None else "",
            step=state.step if state is not None else None,
            checkpoint=f"{mark.number} {mark.name}" if mark is not None else "",
            sections=state.open_sections if state is not None else (),
        )
    return found


def views_of(facts: PageFacts) -> dict[int, RankView]:
    """Return the case's view of each rank; the first one of a rank that was seen twice."""
    views: dict[int, RankView] = {}
    for view in facts.case.ranks if facts.case is not None else ():
        views.setdefault(view.rank, view)
    return views


def _start(facts: PageFacts, rank: int) -> tuple[str, str]:
    """The command and the moment of its last start, by its journal."""
    starts = [entry for entry in facts.journals.get(rank, ()) if entry.get("kind") == "start"]
    if not starts:
        return "", ""
    at = str(starts[-1].get("at", ""))
    return str(starts[-1].get("command", "")), at if is_moment(at) else ""


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
