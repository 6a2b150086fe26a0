"""A run as a trace: a process a rank, its sections nested, the stall, and arrows for who waits."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.page.rank_history import run_history
from lightning_hangcheck.report.traces.rank_process import STALL, RankProcess, shown
from lightning_hangcheck.report.traces.trace_events import TraceEvent, encode_trace, microseconds
from lightning_hangcheck.report.verdict_text.rank_rows import edges_by_source
from lightning_hangcheck.report.verdict_text.terminal import gap_lines
from lightning_hangcheck.text.moments import read_utc
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from lightning_hangcheck.model.verdict import Edge
    from lightning_hangcheck.report.page.page_facts import PageFacts
    from lightning_hangcheck.report.page.rank_history import (
        EnteredCollective,
        RunHistory,
    )

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
