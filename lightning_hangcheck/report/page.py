"""Renders a run for use outside the terminal: page, issue, prompt for a coding agent, trace.

The page is a template over `page_facts`, the graph, the lanes, and the blocks made here. All its
values are escaped in one place. ``key`` values are unique per page, so that frames, threads and
ranks can be linked to.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.ledger.spending import Prices, read_prices
from lightning_hangcheck.model.code_owner import is_ours, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.copied_text import issue_text, prompt_text, stack_diff
from lightning_hangcheck.report.history import group_title, lanes, run_history
from lightning_hangcheck.report.page_facts import PageFacts, moment, read_page_facts
from lightning_hangcheck.report.perfetto import render_trace
from lightning_hangcheck.report.start_report import NOT_SET, OWN, by_value
from lightning_hangcheck.report.stragglers import find_stragglers, trend_words
from lightning_hangcheck.report.verdict_text import name_ranks
from lightning_hangcheck.report.wait_graph import draw_graph, wait_graph
from lightning_hangcheck.text.shown import parse_ranks, seconds_in_words, several, visible
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from jinja2 import Template

    from lightning_hangcheck.model import evidence
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.flight import CollectiveRecord
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder

Form = Literal["html", "issue", "prompt", "perfetto"]
TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 4_000
LONGEST_SHOWN = 65_536
MOST_EVIDENCE = 200


def write_as(
    form: Form,
    folder: RunFolder,
    verdict: Verdict,
    case: Case | None,
    *,
    run_folder: str,
    price: str = "",
    gaps: Iterable[evidence.Gap] = (),
    goes_on: bool = False,
) -> str:
    """Write a run as self-contained HTML, as Markdown, or for another tool.

    An invalid ``price`` per hour is ignored, so that the page is still written. The page of a run
    that ``goes_on`` reloads itself, as it will be rewritten at the same path.
    """
    facts = read_page_facts(
        folder, verdict, case, gaps, run_folder=run_folder, all_ranks=form == "perfetto"
    )
    if form == "html":
        return _render(facts, price, goes_on=goes_on)
    return {"perfetto": render_trace, "issue": issue_text, "prompt": prompt_text}[form](facts)


def _render(facts: PageFacts, price: str, *, goes_on: bool) -> str:
    verdict = facts.verdict
    (nodes, edges), history = wait_graph(facts), run_history(facts)
    stalled_since = moment(verdict.stalled_since)
    return _template().render(
        verdict=verdict,
        facts=facts,
        summary=verdict_text.summary(verdict),
        reason=verdict_text.reason(verdict),
        remedy=next(iter(verdict.remedies), None),
        cost=_cost(facts, price),
        goes_on=goes_on,
        graph=draw_graph(nodes, edges) if nodes else None,
        history=history,
        lanes=lanes(facts, history) if history else [],
        ticks=history.ticks if history else [],
        stall_left=history.place(stalled_since) if history and stalled_since else 100.0,
        steps=find_stragglers(facts.case),
        grids=collective_grids(facts),
        stacks=shown_stacks(verdict),
        diff=stack_diff(verdict),
        processes=shown_processes(facts),
        differences=differences(facts),
        evidence=verdict.evidence[:MOST_EVIDENCE],
        gaps=list(verdict_text.gap_lines((*verdict.gaps, *facts.gaps)))[:MOST_EVIDENCE],
        issue=issue_text(facts),
        prompt=prompt_text(facts),
    )


def _cost(facts: PageFacts, price: str) -> str:
    """Time and cost of the stall, and what a restart discards; empty without a stall."""
    verdict = facts.verdict
    cost = verdict_text.stall_cost(verdict)
    if not cost:
        return ""
    try:
        prices = read_prices([price])
    except BadUsage:
        prices = Prices()
    gpus = {
        gpu.name
        for view in (facts.case.ranks if facts.case is not None else ())
        for look in view.processes
        for sample in look.samples[-1:]
        for gpu in sample.gpus
    }
    paid = prices.cost(sorted(gpus), max(1, verdict.world_size), verdict.stalled_for_s)
    money = "" if paid is None else f" = {paid:.2f} at your price"
    lost = next((f"; {item.text}" for item in verdict.evidence if item.kind == "lost"), "")
    return f"{cost}{money}{lost}"


@cache
def _template() -> Template:
    """Load the page with style and script; late, as the sidecar imports this module early."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for kind in ("css", "js"):
        part = (TEMPLATES / f"page.{kind}").read_text("utf-8")
        # in the format of a content security policy for inline styles and scripts
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        environment.globals |= {kind: part, f"{kind}_hash": f"sha256-{digest}"}
    environment.globals |= {"version": __version__, "grid_words": ENTERED}
    for function in (
        *(several, seconds_in_words, trend_words, name_ranks),
        *(verdict_text.name_process, folded_lines),
    ):
        environment.globals[function.__name__] = function
    return environment.get_template("page.html.jinja")


def _shown(value: object) -> object:
    """Clean a value of the page before it is escaped for HTML.

    Characters that change the writing direction or control a terminal are shown as escapes. Line
    breaks are kept; lengths are limited.
    """
    if type(value) is not str:  # templates and this package's own files are Markup
        return "" if value is None else value
    lines = re.split(r"\r\n|\r|\n", value[:LONGEST_SHOWN])
    return "\n".join(visible(line)[:LONGEST_TEXT] for line in lines)


Block = dict[str, Any]
MOST_NUMBERS, MOST_GROUPS, MOST_ROWS = 10, 12, 24
MOST_FRAMES = 1_600  # Of all distinct stacks together, about 300 bytes each on the page.
MOST_PROCESSES, MOST_THREADS = 6, 24  # Per rank, and per process with Python frames.
ENTERED = {
    "ended": "entered and ended",
    "open": "entered, not ended",
    "apart": "entered another operation than others",
    "missing": "not entered",
    "unkept": "entered, no longer in the record",
}
Cell = tuple[str, str]  # A collective of one rank: a key of `ENTERED`, and the operation.


def collective_grids(facts: PageFacts) -> list[Block]:
    """Return one grid per group in the flight records, divergent groups first."""
    groups: dict[str, dict[int, CollectiveRecord]] = {}
    for rank, view in facts.views.items():
        for record in view.flight.groups if view.flight is not None else ():
            if rank in record.ranks or not record.ranks:  # other ranks know of the group, too
                groups.setdefault(record.group, {})[rank] = record
    culprits = frozenset(facts.verdict.culprits)
    grids = [_grid(name, records, culprits) for name, records in groups.items()]
    with_numbers = sorted(
        (grid for grid in grids if grid["numbers"]), key=lambda grid: grid["alike"]
    )
    return with_numbers[:MOST_GROUPS]


def _grid(name: str, records: Mapping[int, CollectiveRecord], culprits: frozenset[int]) -> Block:
    newest = {
        rank: max([record.last_enqueued, *(entry.seq for entry in record.entries)])
        for rank, record in records.items()
    }
    last = max(newest.values())
    numbers = range(max(1, last - MOST_NUMBERS + 1), last + 1)
    cells: dict[int, list[Cell]] = {}
    for rank, record in records.items():
        entries = {entry.seq: entry for entry in record.entries}
        cells[rank] = [
            ("ended" if record.has_ended(entries[number]) else "open", entries[number].op)
            if number in entries
            else ("unkept" if number <= newest[rank] else "missing", "")
            for number in numbers
        ]
    columns = zip(*cells.values(), strict=True)
    apart = [len({operation for _, operation in column if operation}) > 1 for column in columns]
    rows: dict[tuple[Cell, ...], list[int]] = {}
    for rank, row in cells.items():
        marked = tuple(
            ("apart" if differs and operation else entered, operation)
            for (entered, operation), differs in zip(row, apart, strict=True)
        )
        rows.setdefault(marked, []).append(rank)
    ordered = sorted(rows.items(), key=lambda row: (culprits.isdisjoint(row[1]), row[1]))
    titles = [group_title(name, record.description) for record in records.values()]
    return {
        "group": max(titles, key=len),
        "numbers": numbers,
        "rows": [
            (name_ranks(ranks), not culprits.isdisjoint(ranks), row)
            for row, ranks in ordered[:MOST_ROWS]
        ],
        "rows_left_out": max(0, len(ordered) - MOST_ROWS),
        "alike": {entered for row in rows for entered, _ in row}.isdisjoint(("missing", "apart")),
    }


def differences(facts: PageFacts) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return what differs between ranks by run.json and journals: name, values, ranks."""
    ranks = facts.record.ranks if facts.record is not None else ()
    by_name = {"host": {record.rank: record.host for record in ranks}}
    for name in sorted({name for record in ranks for name in record.environment} - OWN):
        by_name[name] = {record.rank: record.environment.get(name, NOT_SET) for record in ranks}
    for name in ("command", "folder", "launcher"):
        by_name[name] = {rank: str(start.get(name, "")) for rank, start in facts.starts.items()}
    versions = {
        rank: found if isinstance(found := start.get("versions"), dict) else {}
        for rank, start in facts.starts.items()
    }
    for name in sorted({str(name) for found in versions.values() for name in found}):
        by_rank = {rank: str(found.get(name, "")) for rank, found in versions.items()}
        by_name[f"version of {name}"] = by_rank
    shown = []
    for name, values in by_name.items():
        spread = by_value(values, most=6, longest=200)
        if len(spread) > 1:
            shown.append((name, [(value, name_ranks(who)) for value, who in spread]))
    return shown


class Line(NamedTuple):
    """A frame, or several library frames folded into one line."""

    key: str
    text: str
    is_users: bool
    folded: tuple[str, ...] = ()


def shown_stacks(verdict: Verdict) -> tuple[list[Block], int]:
    """Return the distinct stacks with their ranks or workers, culprits first; and how many more."""
    culprits = frozenset(verdict.culprits)
    groups = [(group, parse_ranks(group.ranks)) for group in verdict.stack_groups]  # largest first
    groups.sort(key=lambda pair: culprits.isdisjoint(pair[1]))
    sums = accumulate(len(group.frames) for group, _ in groups)
    kept = [pair for pair, sum_ in zip(groups, sums, strict=True) if sum_ <= MOST_FRAMES]
    whose = {"rank": "", "worker": "DataLoader workers of "}
    found = [
        {
            "who": f"{whose[group.process]}{name_ranks(ranks)}",
            "has_culprit": not culprits.isdisjoint(ranks),
            "lines": folded_lines(group.frames, f"frame-{number}"),
        }
        for number, (group, ranks) in enumerate(kept)
    ]
    return found, len(groups) - len(found)


def folded_lines(frames: Sequence[str], key: str) -> list[Line]:
    """Fold consecutive frames of one package, unless they are the user's, into one line."""

    def package(text: str) -> str:
        """Owner of a frame's code; empty for the user's."""
        if (frame := Frame.parse(text)) is None:
            return "unknown files"
        owner = owner_of(frame.file)
        named = {"user": "", "standard": "Python", "ours": "this tool", "framework": owner.package}
        return named[owner.kind]

    lines: list[Line] = []
    at = 0
    for name, run in groupby(frames, key=package):
        together = tuple(run)
        if not name or len(together) == 1:
            for number, frame in enumerate(together, start=at):
                lines.append(Line(f"{key}-{number}", frame, not name))
        else:
            shown = f"{len(together)} frames of {name}, innermost {together[-1]}"
            lines.append(Line(f"{key}-{at}", shown, False, together))
        at += len(together)
    return lines


def shown_processes(facts: PageFacts) -> list[Block]:
    """Return the threads of culprits, and of one rank per other group, as far as they fit."""
    found: list[Block] = []
    left = 1_200  # frames of all processes together, about 250 bytes each on the page
    culprits = frozenset(facts.verdict.culprits)
    ranks = sorted(facts.shown, key=lambda rank: rank not in culprits)[:12]
    views = [(rank, facts.views[rank]) for rank in ranks if rank in facts.views]
    every = ((rank, look) for rank, view in views for look in view.processes[:MOST_PROCESSES])
    for rank, look in every:
        sample = next(
            (candidate for candidate in reversed(look.samples) if candidate.stack is not None), None
        )
        if sample is None or (stack := sample.stack) is None:
            continue
        left -= sum(len(thread.frames) for thread in stack.threads[:MOST_THREADS])
        if left < 0 and found:
            break
        # local variables that were asked for: of the newest sample, innermost call not of ours
        asked = (
            local_values
            for earlier in reversed(look.samples)
            for local_values in reversed(earlier.local_values)
            if not is_ours(local_values.frame.file)
        )
        by_kernel = {
            thread.tid: thread for thread in (sample.kernel.threads if sample.kernel else ())
        }
        threads = []
        for number, thread in enumerate(shown_threads(stack)[:MOST_THREADS]):
            known = by_kernel.get(thread.tid or 0)
            marks = [
                "holds the interpreter lock" if thread.owns_gil else "",
                "takes a lock" if thread.takes_lock else "",
                f"state {known.state}" if known is not None else "",
                f"in {known.wchan}" if known is not None and known.wchan else "",
            ]
            key = f"rank-{rank}-pid-{look.pid}-thread-{thread.tid or number}"
            name = f"{thread.name or 'thread'} {thread.tid or ''}".strip()
            lines = folded_lines([str(frame) for frame in thread.frames], f"{key}-frame")
            threads.append((key, name, ", ".join(filter(None, marks)), lines))
        found.append(
            {
                "rank": rank,
                "look": look,
                "source": stack.source,
                "threads": threads,
                "native_calls": sample.native_calls,
                "innermost": next(asked, None),
            }
        )
    return found
