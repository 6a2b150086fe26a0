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
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from lightning_hangcheck.report.history import (
        EnteredCollective,
        RankHistory,
        RunHistory,
        Span,
    )
    from lightning_hangcheck.report.page_facts import PageFacts

THREADS = 64
"""Of a rank at most. Ids of threads are unique in the whole file so: Perfetto looks for one in all
processes. Process 0 is the kernel's idle task there, so ranks begin behind it."""
MOST_ROWS = 8
MOST_GROUPS = 12
STALL = "no progress"
THE_RUN = 1

Event = dict[str, Any]
"""As the format has them. ``ph`` is the kind: ``X`` lasts ``dur``, ``i`` is a moment, whose line
goes as far as ``s`` says (``t`` its thread, ``g`` all), ``M`` names a process or a thread, and an
arrow leads from ``s`` to the ``f`` of the same ``id``. Times are microseconds, since 1970."""


def render_trace(facts: PageFacts) -> str:
    """Write a run as trace-event JSON.

    Returns:
        One JSON object; of a run in which no time passed it has the verdicts only. Names come
        first, then events by time; no sign in it is one that a terminal obeys.
    """
    history, verdict = run_history(facts), facts.verdict
    events = list(
        _names(THE_RUN, THE_RUN, process_name=f"run {verdict.run_id}", thread_name="verdicts")
    )
    for one in (*(one for _, one in facts.earlier), verdict):
        if (at := moment(one.detected_at)) is not None:
            event = {"name": shown(one.verdict), "ph": "i", "pid": THE_RUN, "tid": THE_RUN}
            event |= {"ts": _microseconds(at), "cat": "verdict", "s": "g"}
            events.append({**event, "args": {"summary": shown(one.summary)}})
    if history is not None:
        events += _ranks(facts, history)
    about = {"run": verdict.run_id, "command": verdict.command, "summary": verdict.summary}
    about["written by"] = f"lightning-hangcheck {__version__}"
    unseen = islice(gap_lines((*verdict.gaps, *facts.gaps)), 20)
    about.update((f"not seen {number}", line) for number, line in enumerate(unseen, start=1))
    trace = {
        "traceEvents": sorted(events, key=lambda one: (one.get("ts", 0), -one.get("dur", 0))),
        "displayTimeUnit": "ms",
        "otherData": {name: shown(text) for name, text in about.items()},
    }
    return visible_json(msgspec.json.encode(trace)).decode() + "\n"


@lru_cache(maxsize=8192)
def shown(text: str) -> str:
    """Make a foreign text harmless, and short; what looks like a secret is hidden once more."""
    return redact_text(plain(text))[:300]


def _microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def _shown_args(args: Mapping[str, str | float]) -> dict[str, str | float]:
    return {key: shown(arg) if isinstance(arg, str) else arg for key, arg in args.items()}


def _names(pid: int, tid: int, **names: str | int) -> Iterator[Event]:
    """What processes and threads are called, and in which order they stand."""
    for what, name in names.items():
        args = _shown_args({what.partition("_")[2]: name})
        yield {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


class RankProcess:
    """The events of one rank so far; each thread of it is a kind of them."""

    def __init__(self, rank: int, label: str) -> None:
        self.pid = (rank + 1) * THREADS
        names: dict[str, str | int] = {"process_name": f"rank {rank}", "process_sort_index": rank}
        self.events = list(_names(self.pid, self.pid, **names, process_labels=label))
        self._threads: dict[str, int] = {}

    def add(self, ph: str, thread: str, name: str, at: datetime, **facts: Any) -> Event:  # noqa: ANN401 - the format's own
        """Add an event; beyond what there is room for, threads share the last one."""
        if thread not in self._threads and len(self._threads) < THREADS - 1:
            tid = self._threads[thread] = self.pid + len(self._threads) + 1
            self.events += _names(self.pid, tid, thread_name=thread, thread_sort_index=tid)
        tid = self._threads.get(thread, self.pid + THREADS - 1)
        event = {"name": shown(name), "ph": ph, "pid": self.pid, "tid": tid}
        event |= {"ts": _microseconds(at), "cat": thread.partition(" ")[0], **facts}
        self.events.append(event)
        return event

    def lasts(
        self, thread: str, name: str, began: datetime, ended: datetime, **args: str | float
    ) -> None:
        """Add what lasts from one moment to another."""
        event = self.add("X", thread, name, began, dur=0)
        event["dur"] = max(0, _microseconds(ended) - event["ts"])
        if args:
            event["args"] = _shown_args(args)

    def tell(
        self, history: RankHistory, missed: Sequence[EnteredCollective], most: int, end: datetime
    ) -> None:
        """Add what a rank's history has until its end, but for the stall.

        When a collective ended is in no record: one that did is a moment. One that it missed, the
        first of its group, lasts from when others entered it.
        """
        for happening in history.happenings[-most:]:
            self.add("i", "checkpoints", happening.name, happening.at, s="t")
        sections = [span for span in history.spans if span.kind in ("section", "open")]
        for number, row in enumerate(nested_rows(longest_first(sections)[:most])):
            for span in row:
                thread = f"sections{f' {number + 1}' if number else ''}"
                self.lasts(thread, span.name, span.began, span.ended)
        for span in [span for span in history.spans if span.kind == "steps"][-most:]:
            each = round(span.seconds / span.steps, 6)
            self.lasts("steps", span.name, span.began, span.ended, seconds_each=each)
        entered = history.collectives[-most:]
        groups = list(dict.fromkeys(entry.group for entry in (*entered, *missed)))[:MOST_GROUPS]
        for entry in (*entered, *missed):
            if entry.group not in groups:
                continue
            thread, name = f"collectives of {entry.group}", f"#{entry.number} {entry.operation}"
            hole = entry in missed
            if entry.ended and not hole:
                self.add("i", thread, name, entry.at, s="t")
            else:
                became = "not entered" if hole else "not ended"
                self.lasts(thread, f"{name}, {became}", entry.at, end, number=entry.number)


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


def _ranks(facts: PageFacts, history: RunHistory) -> Iterator[Event]:
    # 200,000 events of four kinds, some 150 bytes each
    most = max(8, 50_000 // max(1, len(history.ranks)))
    edges = edges_by_source(facts.verdict)
    # the first number of each group that others entered and a rank that is in it did not
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
    processes = []
    stood: dict[str, tuple[datetime, RankProcess]] = {}
    for rank, told in history.ranks.items():
        state = facts.shown[rank]
        label = f"{state.state} on {state.host or 'an unknown host'}, pid {state.pid}"
        process = RankProcess(rank, label)
        processes.append(process)
        process.tell(told, missed.get(rank, ()), most, told.gone_at or history.ends)
        stalls = (span.began for span in told.spans if span.kind == "stall")
        began = told.gone_at or next(stalls, None)
        if began is not None:
            ways = [f"{edge.target} {edge.through}" for edge in edges.get(f"rank:{rank}", ())]
            name = STALL if told.gone_at is None else "gone"
            waits = "; ".join(ways[:8])
            process.lasts(STALL, name, began, history.ends, state=state.state, waits_for=waits)
            stood[f"rank:{rank}"] = began, process
    # arrows from each rank that waits to the one that it waits for, while both stand still
    ours = [one for one in facts.verdict.wait_for if one.source in stood and one.target in stood]
    for number, edge in enumerate(ours[:5_000], start=1):
        (source_began, source), (target_began, target) = stood[edge.source], stood[edge.target]
        began = max(source_began, target_began)
        if began < history.ends:
            middle = began + (history.ends - began) / 2
            source.add("s", STALL, "waits for", middle, cat="wait", id=number)
            target.add("f", STALL, "waits for", middle, cat="wait", id=number, bp="e")
    for process in processes:
        yield from process.events
