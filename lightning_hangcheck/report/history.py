"""Builds each rank's history, and the timeline lanes that show it."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct

from lightning_hangcheck.report.page_facts import moment
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text import name_ranks
from lightning_hangcheck.text.moments import moment_of
from lightning_hangcheck.text.shown import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.report.page_facts import Entry, PageFacts

MOST_ITEMS = 1_200  # For all lanes together, about 150 bytes each on the page.


class Span(NamedTuple):
    """Something with a duration, maybe until the verdict; ``open`` is a section that was not left.

    `depth` counts the sections around it, `steps` the training steps in it.
    """

    kind: Literal["section", "open", "steps", "stall"]
    name: str
    began: datetime
    ended: datetime
    depth: int = 0
    steps: int = 0

    @property
    def seconds(self) -> float:
        """Duration."""
        return max(0.0, (self.ended - self.began).total_seconds())

    @property
    def title(self) -> str:
        """Name, duration, begin, and time per step."""
        each = f", {seconds_in_words(self.seconds / self.steps)} each" if self.steps > 1 else ""
        return f"{self.name}: {seconds_in_words(self.seconds)} from {self.began:%H:%M:%S}{each}"


class Happening(NamedTuple):
    """Something without a duration."""

    kind: Literal["checkpoint", "saved", "progress", "end"]
    name: str
    at: datetime


class EnteredCollective(NamedTuple):
    """A collective that the rank entered, and whether it ended."""

    group: str
    number: int
    operation: str
    at: datetime
    ended: bool


class RankHistory(Struct, frozen=True, kw_only=True):
    """History of one rank, each list in recorded order, and when its process ended."""

    gone_at: datetime | None
    spans: list[Span]
    happenings: list[Happening]
    collectives: list[EnteredCollective]


class RunHistory(NamedTuple):
    """History of all shown ranks, from the first recorded time to the verdict."""

    begins: datetime
    ends: datetime
    ranks: dict[int, RankHistory]

    def place(self, at: datetime) -> float:
        """Return the position of a time on the axis of the lanes, in percent."""
        share = (at - self.begins) / (self.ends - self.begins)
        return round(100 * min(1.0, max(0.0, share)), 3)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The labels of the axis, each with its position in percent."""
        whole = self.ends - self.begins
        return [(25.0 * at, f"{self.begins + whole * at / 4:%H:%M:%S}") for at in range(5)]


def run_history(facts: PageFacts) -> RunHistory | None:
    """Build the history; None if no time passed between start and verdict."""
    timed = {
        rank: [(at, entry) for entry in entries if (at := moment(entry.get("at")))]
        for rank, entries in facts.journals.items()
    }
    taken = moment(facts.case.taken_at) if facts.case is not None else None
    ends = [at for at in (taken, moment(facts.verdict.detected_at)) if at is not None]
    begins = [entries[0][0] for entries in timed.values() if entries]
    started = moment(facts.verdict.started_at)
    begins = begins or ([started] if started is not None else [])
    if not begins or not ends or min(begins) >= max(ends):
        return None
    ranks = {
        rank: _history(timed.get(rank, ()), facts.views.get(rank), taken, max(ends))
        for rank in facts.shown
    }
    return RunHistory(min(begins), max(ends), ranks)


def longest_first(spans: Iterable[Span]) -> list[Span]:
    """Order spans by importance, if not all can be shown; complete ones come last."""
    return sorted(spans, key=lambda span: (span.kind in ("section", "steps"), -span.seconds))


def group_title(name: str, description: str) -> str:
    """Name a process group by torch's number and the program's description."""
    # torch's description of a group to which the program gave none
    return plain(f"{name} {'' if description == 'undefined' else description}".strip())


def _history(
    entries: Sequence[tuple[datetime, Entry]],
    view: RankView | None,
    taken: datetime | None,
    end: datetime,
) -> RankHistory:
    gone_at = None
    if view is not None and view.process_exit is not None:
        gone_at = moment(view.process_exit.at) or taken
    spans = list(_sections(entries, gone_at or end))
    happenings, collectives = [], []
    marks = []  # times with the number of steps done by then
    for at, entry in entries:
        kind, step = entry.get("kind"), entry.get("step")
        if kind == "checkpoint":
            name = plain(f"checkpoint {entry.get('number')}: {entry.get('name')}")
            happenings.append(Happening("checkpoint", name, at))
        elif kind in ("saved", "resumed"):
            happenings.append(Happening("saved", plain(f"{kind} at step {step}"), at))
            marks += [(at, step)] if isinstance(step, int) else []
        elif kind in ("raised", "finished"):
            name = plain(f"{kind} {entry.get('last_words', '')}")
            happenings.append(Happening("end", name, at))
    if view is not None and taken is not None:
        marks += ((taken - timedelta(seconds=mark.ago_s), mark.step) for mark in view.steps)
        if view.steps and view.spent is not None:  # add the first that was seen to the newest
            newest, spent = view.steps[-1], view.spent
            began = taken - timedelta(seconds=newest.ago_s + spent.training_s)
            marks.append((began, newest.step - spent.steps))
    # between two known step counts
    for (began, before), (ended, after) in pairwise(sorted(set(marks))):
        if (made := after - before) > 0:
            name = f"step {after}" if made == 1 else f"steps {before + 1}-{after}"
            spans.append(Span("steps", name, began, ended, steps=made))
    if view is not None and taken is not None:
        last = taken - timedelta(seconds=view.silent_for_s)
        if view.process_exit is not None:
            name = f"process ended, exit code {view.process_exit.exit_code}"
            happenings.append(Happening("end", name, gone_at or taken))
        else:
            if view.silent_for_s > 0:
                spans.append(Span("stall", "no progress", last, taken))
            step = view.beat.step if view.beat is not None else None
            at_step = "" if step is None else f", step {step}"
            happenings.append(Happening("progress", f"last progress{at_step}", last))
        collectives = [
            EnteredCollective(
                group_title(record.group, record.description),
                entry.seq,
                plain(entry.op),
                moment_of(entry.created_ns),
                record.has_ended(entry),
            )
            for record in (view.flight.groups if view.flight is not None else ())
            for entry in record.entries[-20:]
            if entry.created_ns > 0
        ]
    return RankHistory(gone_at=gone_at, spans=spans, happenings=happenings, collectives=collectives)


def _sections(entries: Sequence[tuple[datetime, Entry]], end: datetime) -> Iterator[Span]:
    """Yield sections; those open where lines are missing are dropped: their end is unknown.

    Sections of several threads may overlap; those of one depth never do.
    """
    inside: dict[int, tuple[str, datetime]] = {}  # by depth
    for at, entry in entries:
        kind, name = entry.get("kind"), plain(str(entry.get("name", "")))
        if kind == "section_begin":
            inside[next(depth for depth in count() if depth not in inside)] = name, at
        elif kind in ("section_end", "section_raised"):
            if same := [depth for depth, (begun, _) in inside.items() if begun == name]:
                _, began = inside.pop(max(same))
                yield Span("section", name, began, at, max(same))
        elif kind in ("start", "dropped"):
            inside.clear()
    for depth, (name, began) in inside.items():
        yield Span("open", f"{name}, not left", began, max(began, end), depth)


def lanes(facts: PageFacts, history: RunHistory) -> list[dict[str, Any]]:
    """Choose what fits on the lanes, marks as kind, time and title; one rank represents equals."""
    names = {}
    if len(facts.shown) != facts.verdict.world_size:
        names = {group.ranks[0]: name_ranks(group.ranks) for group in facts.groups}
    most = max(20, MOST_ITEMS // max(1, len(facts.shown))) // 2
    found = []
    for rank, own in history.ranks.items():
        marks = [
            ("collective", entry.at, f"{entry.group} #{entry.number} {entry.operation}")
            for entry in own.collectives
        ]
        # after the collectives, as they tell more: of too many marks the first are dropped
        marks += [
            (mark.kind, mark.at, f"{mark.at:%H:%M:%S} {mark.name}") for mark in own.happenings
        ]
        bars = sorted(longest_first(own.spans)[:most], key=lambda bar: (bar.depth, bar.began))
        left_out = max(0, len(own.spans) - most) + max(0, len(marks) - most)
        name = names.get(rank, name_ranks([rank]))
        lane = {"name": name, "rank": rank, "bars": bars, "marks": marks[-most:]}
        found.append({**lane, "left_out": left_out})
    return found
