"""Exports a run as trace events, for ui.perfetto.dev and chrome://tracing.

Each rank is a process of the trace; its threads are kinds of events, and rows of sections.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.report.history import longest_first, run_history
from lightning_hangcheck.report.page_facts import moment
from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text import edges_by_source, gap_lines
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import EPOCH, visible_json
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from lightning_hangcheck.report.history import EnteredCollective, RunHistory, Span
    from lightning_hangcheck.report.page_facts import PageFacts

THREADS = 64
"""Maximum per process. Makes thread ids unique in the file, as Perfetto looks them up across
processes. For Perfetto process 0 is the kernel's idle task; the run is 64, and ranks follow."""
MOST_ROWS = 8
MOST_GROUPS = 12
MOST_EVENTS = 50_000  # For each of four kinds, of all ranks together; about 150 bytes each.
MOST_ARROWS = 5_000
STALL = "no progress"
THE_RUN = THREADS

Event = dict[str, Any]
"""An event of the format. ``ph`` is the kind: ``X`` lasts ``dur``; ``i`` is a moment, drawn as far
as ``s`` says (``t``: its thread, ``g``: all); ``M`` names a process or thread; an arrow leads from
``s`` to the ``f`` with the same ``id``. Times are microseconds since 1970."""


@lru_cache(maxsize=8192)
def shown(text: str) -> str:
    """Make a foreign text short and harmless; redact secrets once more."""
    return redact_text(plain(text))[:300]


class Trace:
    """Collects events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._threads: dict[int, dict[str, int]] = {}

    def name(self, pid: int, tid: int, **names: str | int) -> None:
        """Set name and sort order of a process or thread."""
        for what, name in names.items():
            args = {what.partition("_")[2]: shown(name) if isinstance(name, str) else name}
            self.events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    def add(self, pid: int, thread: str, ph: str, name: str, at: datetime, **facts: Any) -> None:  # noqa: ANN401 - the format's own
        """Add an event; threads beyond the maximum share the last id."""
        known = self._threads.setdefault(pid, {})
        if thread not in known and len(known) < THREADS - 1:
            tid = known[thread] = pid + len(known) + 1
            self.name(pid, tid, thread_name=thread, thread_sort_index=tid)
        tid = known.get(thread, pid + THREADS - 1)
        event = {"name": shown(name), "ph": ph, "pid": pid, "tid": tid}
        event |= {"ts": _microseconds(at), "cat": thread.partition(" ")[0]}
        self.events.append(event | facts)

    def lasts(
        self,
        pid: int,
        thread: str,
        name: str,
        began: datetime,
        ended: datetime,
        **args: str | float,
    ) -> None:
        """Add an event with a duration."""
        shown_args = {key: shown(arg) if isinstance(arg, str) else arg for key, arg in args.items()}
        dur = max(0, _microseconds(ended) - _microseconds(began))
        self.add(
            pid, thread, "X", name, began, dur=dur, **({"args": shown_args} if shown_args else {})
        )


def _microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def render_trace(facts: PageFacts) -> str:
    """Write a run as trace-event JSON.

    Returns:
        One JSON object without terminal control characters: names first, then events by time. If no
        time passed in the run, there are only verdicts.
    """
    trace, history, verdict = Trace(), run_history(facts), facts.verdict
    trace.name(THE_RUN, THE_RUN, process_name=f"run {verdict.run_id}")
    for each in (*(earlier for _, earlier in facts.earlier), verdict):
        if (at := moment(each.detected_at)) is not None:
            about = {"cat": "verdict", "s": "g", "args": {"summary": shown(each.summary)}}
            trace.add(THE_RUN, "verdicts", "i", each.verdict, at, **about)
    if history is not None:
        _add_ranks(trace, facts, history)
    other = {"run": verdict.run_id, "command": verdict.command, "summary": verdict.summary}
    other["written by"] = f"lightning-hangcheck {__version__}"
    unseen = islice(gap_lines((*verdict.gaps, *facts.gaps)), 20)
    other.update((f"not seen {number}", line) for number, line in enumerate(unseen, start=1))
    whole = {
        "traceEvents": sorted(trace.events, key=lambda e: (e.get("ts", 0), -e.get("dur", 0))),
        "displayTimeUnit": "ms",
        "otherData": {name: shown(text) for name, text in other.items()},
    }
    return visible_json(msgspec.json.encode(whole)).decode() + "\n"


def _add_ranks(trace: Trace, facts: PageFacts, history: RunHistory) -> None:
    most = max(8, MOST_EVENTS // max(1, len(history.ranks)))
    edges, missed = edges_by_source(facts.verdict), _missed(history)
    stood: dict[str, tuple[datetime, int]] = {}
    for rank, lane in history.ranks.items():
        pid, state, end = (rank + 2) * THREADS, facts.shown[rank], lane.gone_at or history.ends
        label = f"{state.state} on {state.host or 'an unknown host'}, pid {state.pid}"
        names: dict[str, str | int] = {"process_name": f"rank {rank}", "process_sort_index": rank}
        trace.name(pid, pid, **names, process_labels=label)
        for happening in lane.happenings[-most:]:
            trace.add(pid, "checkpoints", "i", happening.name, happening.at, s="t")
        sections = [span for span in lane.spans if span.kind in ("section", "open")]
        for number, row in enumerate(nested_rows(longest_first(sections)[:most])):
            for span in row:
                thread = f"sections{f' {number + 1}' if number else ''}"
                trace.lasts(pid, thread, span.name, span.began, span.ended)
        for span in [span for span in lane.spans if span.kind == "steps"][-most:]:
            each = round(span.seconds / span.steps, 6)
            trace.lasts(pid, "steps", span.name, span.began, span.ended, seconds_each=each)
        # records have no end times: a collective that ended is shown as a moment; the first one of
        # its group that the rank missed lasts from when others entered it
        entered = [
            (entry, "" if entry.ended else "not ended") for entry in lane.collectives[-most:]
        ]
        entered += [(entry, "not entered") for entry in missed.get(rank, ())]
        groups = list(dict.fromkeys(entry.group for entry, _ in entered))[:MOST_GROUPS]
        for entry, became in entered:
            thread, name = f"collectives of {entry.group}", f"#{entry.number} {entry.operation}"
            if entry.group in groups and not became:
                trace.add(pid, thread, "i", name, entry.at, s="t")
            elif entry.group in groups:
                number = entry.number
                trace.lasts(pid, thread, f"{name}, {became}", entry.at, end, number=number)
        stalls = (span.began for span in lane.spans if span.kind == "stall")
        if (began := lane.gone_at or next(stalls, None)) is not None:
            ways = [f"{edge.target} {edge.through}" for edge in edges.get(f"rank:{rank}", ())]
            name = STALL if lane.gone_at is None else "gone"
            waits = {"state": state.state, "waits_for": "; ".join(ways[:8])}
            trace.lasts(pid, STALL, name, began, history.ends, **waits)
            stood[f"rank:{rank}"] = began, pid
    # arrows from each waiting rank to the awaited one, while neither advances
    ours = [
        edge for edge in facts.verdict.wait_for if edge.source in stood and edge.target in stood
    ]
    for number, edge in enumerate(ours[:MOST_ARROWS], start=1):
        (source_began, source), (target_began, target) = stood[edge.source], stood[edge.target]
        began = max(source_began, target_began)
        if began < history.ends:
            middle, about = began + (history.ends - began) / 2, {"cat": "wait", "id": number}
            trace.add(source, STALL, "s", "waits for", middle, **about)
            trace.add(target, STALL, "f", "waits for", middle, **about, bp="e")


def _missed(history: RunHistory) -> dict[int, list[EnteredCollective]]:
    """Return, per rank, the first collective of each group that only others entered."""
    firsts: dict[tuple[str, int], EnteredCollective] = {}
    newest: dict[tuple[int, str], int] = {}
    for rank, lane in history.ranks.items():
        for entry in lane.collectives:
            known = firsts.setdefault((entry.group, entry.number), entry)
            if entry.at < known.at:
                firsts[entry.group, entry.number] = entry
            newest[rank, entry.group] = max(newest.get((rank, entry.group), 0), entry.number)
    missed: dict[int, list[EnteredCollective]] = {}
    for (rank, group), number in newest.items():
        if (hole := firsts.get((group, number + 1))) is not None:
            missed.setdefault(rank, []).append(hole)
    return missed


def nested_rows(spans: Iterable[Span]) -> list[list[Span]]:
    """Divide spans into rows in which any two are disjoint or nested.

    Sections of several threads may overlap otherwise, which one thread of a trace cannot show.
    Spans beyond the maximum number of rows are dropped.
    """
    rows: list[tuple[list[Span], list[Span]]] = []  # each with its spans that are still open
    for span in sorted(spans, key=lambda span: (span.began, -span.seconds)):
        for row, around in rows:
            while around and around[-1].ended <= span.began:
                around.pop()
            if not around or span.ended <= around[-1].ended:
                row.append(span)
                around.append(span)
                break
        else:
            if len(rows) < MOST_ROWS:
                rows.append(([span], [span]))
    return [row for row, _ in rows]
