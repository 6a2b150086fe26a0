"""A run as trace events, which ui.perfetto.dev and chrome://tracing open.

Each rank is a process of the trace, its threads are kinds of events, and rows of sections.
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
"""Of a process at most. Ids of threads are unique in the whole file so: Perfetto looks for one in
all processes. Process 0 is the kernel's idle task there; the run is 64, and ranks begin behind."""
MOST_ROWS = 8
MOST_GROUPS = 12
MOST_EVENTS = 50_000  # Of each of four kinds, of all ranks together; some 150 bytes each.
MOST_ARROWS = 5_000
STALL = "no progress"
THE_RUN = THREADS

Event = dict[str, Any]
"""As the format has them. ``ph`` is the kind: ``X`` lasts ``dur``, ``i`` is a moment, whose line
goes as far as ``s`` says (``t`` its thread, ``g`` all), ``M`` names a process or a thread, and an
arrow leads from ``s`` to the ``f`` of the same ``id``. Times are microseconds, since 1970."""


@lru_cache(maxsize=8192)
def shown(text: str) -> str:
    """Make a foreign text harmless, and short; what looks like a secret is hidden once more."""
    return redact_text(plain(text))[:300]


class Trace:
    """The events so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._threads: dict[int, dict[str, int]] = {}

    def name(self, pid: int, tid: int, **names: str | int) -> None:
        """Say what a process or thread is called, and in which order it stands."""
        for what, name in names.items():
            args = {what.partition("_")[2]: shown(name) if isinstance(name, str) else name}
            self.events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    def add(self, pid: int, thread: str, ph: str, name: str, at: datetime, **facts: Any) -> None:  # noqa: ANN401 - the format's own
        """Add an event; beyond what there is room for, threads share the last one."""
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
        """Add what lasts from one moment to another."""
        told = {key: shown(arg) if isinstance(arg, str) else arg for key, arg in args.items()}
        dur = max(0, _microseconds(ended) - _microseconds(began))
        self.add(pid, thread, "X", name, began, dur=dur, **({"args": told} if told else {}))


def _microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def render_trace(facts: PageFacts) -> str:
    """Write a run as trace-event JSON.

    Returns:
        One JSON object; of a run in which no time passed it has the verdicts only. Names come
        first, then events by time; no sign in it is one that a terminal obeys.
    """
    trace, history, verdict = Trace(), run_history(facts), facts.verdict
    trace.name(THE_RUN, THE_RUN, process_name=f"run {verdict.run_id}")
    for one in (*(one for _, one in facts.earlier), verdict):
        if (at := moment(one.detected_at)) is not None:
            about = {"cat": "verdict", "s": "g", "args": {"summary": shown(one.summary)}}
            trace.add(THE_RUN, "verdicts", "i", one.verdict, at, **about)
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
    for rank, told in history.ranks.items():
        pid, state, end = (rank + 2) * THREADS, facts.shown[rank], told.gone_at or history.ends
        label = f"{state.state} on {state.host or 'an unknown host'}, pid {state.pid}"
        names: dict[str, str | int] = {"process_name": f"rank {rank}", "process_sort_index": rank}
        trace.name(pid, pid, **names, process_labels=label)
        for happening in told.happenings[-most:]:
            trace.add(pid, "checkpoints", "i", happening.name, happening.at, s="t")
        sections = [span for span in told.spans if span.kind in ("section", "open")]
        for number, row in enumerate(nested_rows(longest_first(sections)[:most])):
            for span in row:
                thread = f"sections{f' {number + 1}' if number else ''}"
                trace.lasts(pid, thread, span.name, span.began, span.ended)
        for span in [span for span in told.spans if span.kind == "steps"][-most:]:
            each = round(span.seconds / span.steps, 6)
            trace.lasts(pid, "steps", span.name, span.began, span.ended, seconds_each=each)
        # when a collective ended is in no record: one that did is a moment. One that the rank
        # missed, the first of its group, lasts from when others entered it
        entered = [
            (entry, "" if entry.ended else "not ended") for entry in told.collectives[-most:]
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
        stalls = (span.began for span in told.spans if span.kind == "stall")
        if (began := told.gone_at or next(stalls, None)) is not None:
            ways = [f"{edge.target} {edge.through}" for edge in edges.get(f"rank:{rank}", ())]
            name = STALL if told.gone_at is None else "gone"
            waits = {"state": state.state, "waits_for": "; ".join(ways[:8])}
            trace.lasts(pid, STALL, name, began, history.ends, **waits)
            stood[f"rank:{rank}"] = began, pid
    # arrows from each rank that waits to the one that it waits for, while both stand still
    ours = [one for one in facts.verdict.wait_for if one.source in stood and one.target in stood]
    for number, edge in enumerate(ours[:MOST_ARROWS], start=1):
        (source_began, source), (target_began, target) = stood[edge.source], stood[edge.target]
        began = max(source_began, target_began)
        if began < history.ends:
            middle, about = began + (history.ends - began) / 2, {"cat": "wait", "id": number}
            trace.add(source, STALL, "s", "waits for", middle, **about)
            trace.add(target, STALL, "f", "waits for", middle, **about, bp="e")


def _missed(history: RunHistory) -> dict[int, list[EnteredCollective]]:
    """Of each rank the first number of each of its groups that others entered and it did not."""
    firsts: dict[tuple[str, int], EnteredCollective] = {}
    newest: dict[tuple[int, str], int] = {}
    for rank, told in history.ranks.items():
        for entry in told.collectives:
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
    """Divide spans into rows in which each two are apart, or one lies in the other.

    Sections of several threads may overlap otherwise, and a thread of a trace cannot show that.
    Spans for which no row is left are left out.
    """
    rows: list[tuple[list[Span], list[Span]]] = []  # each with the spans that are still open in it
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
