"""A run as trace events, which ui.perfetto.dev and chrome://tracing open.

Each rank is a process of the trace, its threads are kinds of events, and rows of sections.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from lightning_hangcheck.report.page.history import longest_first, run_history
from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text import edges_by_source, gap_lines
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import EPOCH, read_utc, visible_json
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    from lightning_hangcheck.model.verdict import Edge
    from lightning_hangcheck.report.page.history import (
        EnteredCollective,
        RankHistory,
        RunHistory,
        Span,
    )
    from lightning_hangcheck.report.page.page_facts import PageFacts

MICROSECONDS = 1_000_000


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event; what the format has no use for in its kind is left out.

    Attributes:
        ph: Its kind: ``X`` lasts ``dur``, ``i`` is a moment, ``M`` names a process or a thread, and
            an arrow leads from ``s`` to the ``f`` of the same ``id``.
        ts: Microseconds since 1970, as ``dur`` are microseconds.
        s: Of a moment how far its line goes: ``t`` its thread, ``p`` its process, ``g`` all.
        bp: ``e`` of an arrow's end: it leads to what lasts then, not to what begins next.
    """

    name: str
    ph: Literal["X", "i", "M", "s", "f"]
    pid: int
    tid: int
    ts: int | None = None
    dur: int | None = None
    cat: str = ""
    s: Literal["t", "p", "g", ""] = ""
    id: int | None = None
    bp: Literal["e", ""] = ""
    args: dict[str, str | int | float] = {}


class Trace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A whole file."""

    trace_events: tuple[TraceEvent, ...]
    display_time_unit: Literal["ms"] = "ms"
    other_data: dict[str, str] = {}


def encode_trace(events: Iterable[TraceEvent], about: dict[str, str]) -> str:
    """Write a trace, names first and then by time; no sign in it is one that a terminal obeys."""
    ordered = sorted(events, key=lambda event: (event.ts or 0, -(event.dur or 0)))
    trace = Trace(trace_events=tuple(ordered), other_data=about)
    return visible_json(msgspec.json.encode(trace)).decode() + "\n"


def microseconds(moment: datetime) -> int:
    """Return a moment as the format counts: whole microseconds since 1970."""
    return _whole(moment - EPOCH)


def _whole(lasted: timedelta) -> int:
    return (lasted.days * 86_400 + lasted.seconds) * MICROSECONDS + lasted.microseconds


THREADS = 64
"""Of a rank at most. Ids of threads are unique in the whole file so: Perfetto looks for one in all
processes. Process 0 is the kernel's idle task there, so ranks begin behind it."""
MOST_ROWS = 8
MOST_GROUPS = 12
LONGEST_NAME = 300
STALL = "no progress"


@lru_cache(maxsize=8192)
def shown(text: str) -> str:
    """Make a foreign text harmless, and short; what looks like a secret is hidden once more."""
    return redact_text(plain(text))[:LONGEST_NAME]


class RankProcess:
    """Collects the events of one rank.

    Attributes:
        events: So far.
    """

    def __init__(self, rank: int) -> None:
        self.pid = (rank + 1) * THREADS
        self.events: list[TraceEvent] = []
        self._threads: dict[str, int] = {}
        self._name("process_name", self.pid, name=f"rank {rank}")
        self._name("process_sort_index", self.pid, sort_index=rank)

    def label(self, text: str) -> None:
        """Write a text beside the process's name."""
        self._name("process_labels", self.pid, labels=shown(text))

    def thread(self, name: str) -> int:
        """Return the thread of that name; beyond what there is room for, the last one."""
        if name not in self._threads and len(self._threads) < THREADS - 1:
            tid = self.pid + len(self._threads) + 1
            self._threads[name] = tid
            self._name("thread_name", tid, name=shown(name))
            self._name("thread_sort_index", tid, sort_index=tid)
        return self._threads.get(name, self.pid + THREADS - 1)

    def lasts(
        self,
        thread: str,
        name: str,
        began: datetime,
        ended: datetime,
        **args: str | float,
    ) -> None:
        """Add what lasts from one moment to another."""
        ts = microseconds(began)
        self.events.append(
            TraceEvent(
                name=shown(name),
                ph="X",
                pid=self.pid,
                tid=self.thread(thread),
                ts=ts,
                dur=max(0, microseconds(ended) - ts),
                cat=thread.partition(" ")[0],
                args={
                    key: shown(arg) if isinstance(arg, str) else arg for key, arg in args.items()
                },
            )
        )

    def happens(self, thread: str, name: str, at: datetime) -> None:
        """Add what happens at a moment."""
        self.events.append(
            TraceEvent(
                name=shown(name),
                ph="i",
                pid=self.pid,
                tid=self.thread(thread),
                ts=microseconds(at),
                s="t",
                cat=thread.partition(" ")[0],
            )
        )

    def tell(self, history: RankHistory, most: int) -> None:
        """Add what a rank's history has, but for the stall.

        Args:
            history: Of this rank.
            most: Events at most of each kind.
        """
        sections = [span for span in history.spans if span.kind in ("section", "open")]
        steps = [span for span in history.spans if span.kind == "steps"]
        for one in history.happenings[-most:]:
            self.happens("checkpoints", one.name, one.at)
        for number, row in enumerate(nested_rows(longest_first(sections)[:most])):
            for span in row:
                name = f"{span.name}, not left" if span.kind == "open" else span.name
                self.lasts(
                    f"sections{f' {number + 1}' if number else ''}", name, span.began, span.ended
                )
        for span in steps[-most:]:
            each = round(span.seconds / span.steps, 6)
            self.lasts("steps", span.name, span.began, span.ended, seconds_each=each)

    def tell_collectives(
        self,
        entered: Sequence[EnteredCollective],
        missed: Iterable[EnteredCollective],
        end: datetime,
    ) -> None:
        """Add the collectives of each group; what others entered and this rank did not, is a hole.

        When one ended is in no record: one that did is a moment.

        Args:
            entered: By this rank.
            missed: The first of each group that it has not entered, and when others did.
            end: The moment of the verdict.
        """
        groups = list(dict.fromkeys(one.group for one in (*entered, *missed)))[:MOST_GROUPS]
        for one in entered:
            thread, name = f"collectives of {one.group}", f"#{one.number} {one.operation}"
            if one.group in groups and one.ended:
                self.happens(thread, name, one.at)
            elif one.group in groups:
                self.lasts(thread, f"{name}, not ended", one.at, end, number=one.number)
        for one in missed:
            if one.group in groups:
                name = f"#{one.number} {one.operation}, not entered"
                self.lasts(f"collectives of {one.group}", name, one.at, end, number=one.number)

    def _name(self, what: str, tid: int, **args: str | int) -> None:
        self.events.append(TraceEvent(name=what, ph="M", pid=self.pid, tid=tid, args=dict(args)))


def nested_rows(spans: Iterable[Span]) -> list[list[Span]]:
    """Divide spans into rows in which each two are apart, or one lies in the other.

    Sections of several threads may overlap otherwise, and a thread of a trace cannot show that.
    Spans for which no row is left are left out.
    """
    rows: list[list[Span]] = []
    around: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.began, -span.seconds)):
        for row, outer in zip(rows, around, strict=True):
            while outer and outer[-1].ended <= span.began:
                outer.pop()
            if not outer or span.ended <= outer[-1].ended:
                row.append(span)
                outer.append(span)
                break
        else:
            if len(rows) < MOST_ROWS:
                rows.append([span])
                around.append([span])
    return rows


MOST_EVENTS = 200_000
"""Some 150 bytes each; Perfetto opens traces of hundreds of megabytes."""
FEWEST_OF_A_KIND = 8
KINDS = 4
MOST_ARROWS = 5_000
MOST_WAYS = 8
MOST_GAPS = 20
THE_RUN = 1


def render_trace(facts: PageFacts) -> str:
    """Write a run as trace-event JSON.

    Args:
        facts: Of all ranks.

    Returns:
        One JSON object; of a run in which no time passed it has the verdicts only.
    """
    history = run_history(facts)
    events = list(_verdicts(facts))
    if history is not None:
        events += _ranks(facts, history)
    verdict = facts.verdict
    about = {"run": verdict.run_id, "command": verdict.command, "summary": verdict.summary}
    about["written by"] = f"lightning-hangcheck {__version__}"
    unseen = islice(gap_lines((*verdict.gaps, *facts.gaps)), MOST_GAPS)
    about.update((f"not seen {number}", line) for number, line in enumerate(unseen, start=1))
    return encode_trace(events, {name: shown(text) for name, text in about.items()})


def _verdicts(facts: PageFacts) -> Iterator[TraceEvent]:
    """Each at its moment."""
    names = {"process_name": f"run {facts.verdict.run_id}", "thread_name": "verdicts"}
    for what, name in names.items():
        args: dict[str, str | int | float] = {"name": shown(name)}
        yield TraceEvent(name=what, ph="M", pid=THE_RUN, tid=THE_RUN, args=args)
    newest = facts.verdict
    told = [(one.kind, one.at, one.summary) for one in facts.earlier]
    for kind, at, summary in (*told, (newest.verdict, newest.detected_at, newest.summary)):
        if is_moment(at):
            yield TraceEvent(
                name=shown(kind),
                ph="i",
                pid=THE_RUN,
                tid=THE_RUN,
                ts=microseconds(read_utc(at)),
                s="g",
                cat="verdict",
                args={"summary": shown(summary)},
            )


class _Stood(NamedTuple):
    """From when on a rank stood still, or was gone, and where the trace has that."""

    began: datetime
    process: RankProcess


def _ranks(facts: PageFacts, history: RunHistory) -> Iterator[TraceEvent]:
    most = max(FEWEST_OF_A_KIND, MOST_EVENTS // KINDS // max(1, len(history.ranks)))
    missed = _holes(history)
    edges = edges_by_source(facts.verdict)
    stood: dict[int, _Stood] = {}
    for rank, told in history.ranks.items():
        process = RankProcess(rank)
        who = told.who
        process.label(f"{who.state} on {who.host or 'an unknown host'}, pid {who.pid}")
        process.tell(told, most)
        end = told.gone_at or history.ends
        process.tell_collectives(told.collectives[-most:], missed.get(rank, ()), end)
        began = told.gone_at or next((one.began for one in told.spans if one.kind == "stall"), None)
        if began is not None:
            ways = [f"{one.target} {one.through}" for one in edges.get(f"rank:{rank}", ())]
            name = STALL if told.gone_at is None else "gone"
            waits = "; ".join(ways[:MOST_WAYS])
            process.lasts(STALL, name, began, history.ends, state=who.state, waits_for=waits)
            stood[rank] = _Stood(began, process)
        yield from process.events
    yield from _arrows(facts.verdict.wait_for, stood, history.ends)


def _arrows(
    edges: tuple[Edge, ...], stood: Mapping[int, _Stood], end: datetime
) -> Iterator[TraceEvent]:
    """From each rank that waits to the one that it waits for, while both stand still."""
    ranks = {f"rank:{rank}": one for rank, one in stood.items()}
    ours = [edge for edge in edges if edge.source in ranks and edge.target in ranks]
    for number, edge in enumerate(ours[:MOST_ARROWS], start=1):
        began = max(ranks[edge.source].began, ranks[edge.target].began)
        if began >= end:
            continue
        middle = microseconds(began + (end - began) / 2)
        for node, kind in ((edge.source, "s"), (edge.target, "f")):
            process = ranks[node].process
            yield TraceEvent(
                name="waits for",
                ph="s" if kind == "s" else "f",
                pid=process.pid,
                tid=process.thread(STALL),
                ts=middle,
                cat="wait",
                id=number,
                bp="" if kind == "s" else "e",
            )


def _holes(history: RunHistory) -> dict[int, list[EnteredCollective]]:
    """The first number of each group that others entered and a rank that is in it did not."""
    firsts: dict[str, dict[int, EnteredCollective]] = {}
    newest: dict[str, dict[int, int]] = {}
    for rank, told in history.ranks.items():
        for one in told.collectives:
            known = firsts.setdefault(one.group, {}).setdefault(one.number, one)
            if one.at < known.at:
                firsts[one.group][one.number] = one
            of_group = newest.setdefault(one.group, {})
            of_group[rank] = max(of_group.get(rank, 0), one.number)
    missed: dict[int, list[EnteredCollective]] = {}
    for group, ranks in newest.items():
        for rank, number in ranks.items():
            if number + 1 in firsts[group]:
                missed.setdefault(rank, []).append(firsts[group][number + 1])
    return missed
