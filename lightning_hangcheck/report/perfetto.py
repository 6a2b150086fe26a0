"""Exports a run as trace events, for ui.perfetto.dev and chrome://tracing.

Each rank is a process of the trace; its threads are kinds of events, and depths of sections.
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
from lightning_hangcheck.text.moments import EPOCH
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import visible_json
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from datetime import datetime

    from lightning_hangcheck.report.history import EnteredCollective, RunHistory
    from lightning_hangcheck.report.page_facts import PageFacts

THREADS = 64
"""Maximum per process. Makes thread ids unique in the file, as Perfetto looks them up across
processes. For Perfetto process 0 is the kernel's idle task; the run is 64, and ranks follow."""
MOST_EVENTS = 50_000  # For each of four kinds, of all ranks together; about 150 bytes each.
MOST_ARROWS = 5_000


@lru_cache(maxsize=8192)
def shown(text: str) -> str:
    """Make a foreign text short and harmless; redact secrets once more."""
    return redact_text(plain(text))[:300]


class Trace:
    """Collects events of the format.

    ``ph`` is the kind: ``X`` lasts ``dur``; ``i`` is a moment, drawn as far as ``s`` says (``t``:
    its thread, ``g``: all); ``M`` names a process or thread; an arrow leads from ``s`` to the ``f``
    with the same ``id``. Times are microseconds since 1970.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._threads: dict[int, dict[str, int]] = {}

    def name(self, pid: int, tid: int, **names: str | int) -> None:
        """Set name and sort order of a process or thread."""
        for what, name in names.items():
            args = {what.partition("_")[2]: shown(name) if isinstance(name, str) else name}
            self.events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    def add(
        self,
        pid: int,
        thread: str,
        name: str,
        at: datetime,
        ended: datetime | None = None,
        scope: str = "t",
        **args: str | float,
    ) -> dict[str, Any]:
        """Add an event, a moment unless it ``ended`` later; too many threads share the last id."""
        known = self._threads.setdefault(pid, {})
        if thread not in known and len(known) < THREADS - 1:
            tid = known[thread] = pid + len(known) + 1
            self.name(pid, tid, thread_name=thread, thread_sort_index=tid)
        start, end = ((time - EPOCH) // timedelta(microseconds=1) for time in (at, ended or at))
        event = {"name": shown(name), "pid": pid, "tid": known.get(thread, pid + THREADS - 1)}
        event |= {"ts": start, "cat": thread.partition(" ")[0]}
        event |= (
            {"ph": "i", "s": scope} if ended is None else {"ph": "X", "dur": max(0, end - start)}
        )
        if args:
            event["args"] = {
                k: shown(arg) if isinstance(arg, str) else arg for k, arg in args.items()
            }
        self.events.append(event)
        return event

    def arrow(self, number: int, source: dict[str, Any], target: dict[str, Any]) -> None:
        """Draw an arrow between two events, in the middle of the time that both last."""
        began = max(source["ts"], target["ts"])
        ends = min(each["ts"] + each["dur"] for each in (source, target))
        for kind, event in (({"ph": "s"}, source), ({"ph": "f", "bp": "e"}, target)):
            if began < ends:
                place = {"pid": event["pid"], "tid": event["tid"], "ts": (began + ends) // 2}
                self.events.append(
                    {"name": "waits for", "cat": "wait", "id": number, **kind, **place}
                )


def render_trace(facts: PageFacts) -> str:
    """Write a run as trace-event JSON.

    Returns:
        One JSON object without terminal control characters: names first, then events by time. If no
        time passed in the run, there are only verdicts.
    """
    trace, history, verdict = Trace(), run_history(facts), facts.verdict
    trace.name(THREADS, THREADS, process_name=f"run {verdict.run_id}")
    for each in (*(earlier for _, earlier in facts.earlier), verdict):
        if (at := moment(each.detected_at)) is not None:
            trace.add(THREADS, "verdict", each.verdict, at, scope="g", summary=each.summary)
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
    stood: dict[str, dict[str, Any]] = {}
    for rank, lane in history.ranks.items():
        pid, state, end = (rank + 2) * THREADS, facts.shown[rank], lane.gone_at or history.ends
        label = f"{state.state} on {state.host or 'an unknown host'}, pid {state.pid}"
        names: dict[str, str | int] = {"process_name": f"rank {rank}", "process_sort_index": rank}
        trace.name(pid, pid, **names, process_labels=label)
        for happening in lane.happenings[-most:]:
            trace.add(pid, "checkpoints", happening.name, happening.at)
        sections = [span for span in lane.spans if span.kind in ("section", "open")]
        for span in longest_first(sections)[:most]:
            thread = f"sections {span.depth + 1}" if span.depth else "sections"
            trace.add(pid, thread, span.name, span.began, span.ended)
        for span in [span for span in lane.spans if span.kind == "steps"][-most:]:
            each = round(span.seconds / span.steps, 6)
            trace.add(pid, "steps", span.name, span.began, span.ended, seconds_each=each)
        # records have no end times: a collective that ended is shown as a moment; the first one of
        # its group that the rank missed lasts from when others entered it
        known = [(entry, "" if entry.ended else "not ended") for entry in lane.collectives[-most:]]
        for entry, became in [*known, *((hole, "not entered") for hole in missed.get(rank, ()))]:
            thread, name = f"collectives of {entry.group}", f"#{entry.number} {entry.operation}"
            if not became:
                trace.add(pid, thread, name, entry.at)
            else:
                trace.add(pid, thread, f"{name}, {became}", entry.at, end, number=entry.number)
        stalls = (span.began for span in lane.spans if span.kind == "stall")
        if (began := lane.gone_at or next(stalls, None)) is not None:
            ways = [f"{edge.target} {edge.through}" for edge in edges.get(f"rank:{rank}", ())]
            name = "no progress" if lane.gone_at is None else "gone"
            waits = {"state": state.state, "waits_for": "; ".join(ways[:8])}
            stood[f"rank:{rank}"] = trace.add(
                pid, "no progress", name, began, history.ends, **waits
            )
    # arrows from each waiting rank to the awaited one, while neither advances
    for number, edge in enumerate(facts.verdict.wait_for[:MOST_ARROWS], start=1):
        if edge.source in stood and edge.target in stood:
            trace.arrow(number, stood[edge.source], stood[edge.target])


def _missed(history: RunHistory) -> dict[int, list[EnteredCollective]]:
    """Return, per rank, the first collective of each group that only others entered."""
    entered = [(rank, each) for rank, lane in history.ranks.items() for each in lane.collectives]
    firsts: dict[tuple[str, int], EnteredCollective] = {}
    newest: dict[tuple[int, str], int] = {}
    for rank, each in sorted(entered, key=lambda item: item[1].at):
        firsts.setdefault((each.group, each.number), each)
        newest[rank, each.group] = max(newest.get((rank, each.group), 0), each.number)
    missed: dict[int, list[EnteredCollective]] = {}
    for (rank, group), number in newest.items():
        if (hole := firsts.get((group, number + 1))) is not None:
            missed.setdefault(rank, []).append(hole)
    return missed
