"""The page's blocks but for graph and lanes: ranks, steps, collectives, stacks, threads, kernel.

Each is what its part of the template walks through; ``keys`` in it are unique on the page.
"""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.model.code_owner import is_ours, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.report.page.history import UNNAMED, group_title
from lightning_hangcheck.report.start_report import NOT_SET, OWN, by_value
from lightning_hangcheck.report.stragglers import find_stragglers, trend_words
from lightning_hangcheck.report.verdict_text import name_process, name_ranks
from lightning_hangcheck.text.shown import (
    bytes_in_words,
    format_ranks,
    parse_ranks,
    seconds_in_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.beat import StepTimes
    from lightning_hangcheck.model.evidence import ProcessLook
    from lightning_hangcheck.model.flight import CollectiveRecord
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.report.page.page_facts import PageFacts

Block = dict[str, Any]
MOST_TIMED = 16
MOST_NUMBERS, MOST_GROUPS, MOST_ROWS = 10, 12, 24
MOST_VALUES, LONGEST_VALUE = 6, 200
LONGEST_RANKS = 60
MOST_FRAMES = 1_600
"""Of the stacks that are merged (the culprits', then the largest others'), were none shared; some
300 bytes each on the page."""
MOST_OPENED = 12
"""Ranks whose threads are shown, culprits first."""
MOST_PROCESSES, MOST_THREADS = 6, 24
"""Of a rank, and of a process with Python frames."""
MOST_FRAMES_IN_ALL = 1_200
"""Of all processes together, some 250 bytes each on the page."""
ENTERED = {
    "ended": "entered and ended",
    "open": "entered, not ended",
    "apart": "entered another operation than others",
    "missing": "not entered",
    "unkept": "entered, no longer in the record",
}
Cell = tuple[str, str]
"""Of a collective, for one rank: a word of `ENTERED`, and the operation."""


def identities(facts: PageFacts) -> dict[int, Block]:
    """Who each rank is that the page tells of by itself; what is not known of it is empty."""
    states = {state.rank: state for state in facts.verdict.ranks}
    found = {}
    for rank in facts.shown:
        state, view, start = states.get(rank), facts.views.get(rank), facts.starts.get(rank, {})
        found[rank] = {
            "rank": rank,
            "host": view.host if view is not None else "",
            "pid": None,
            "started_at": str(start.get("at", "")),
            "state": "",
            "phase": "",
            "step": None,
            "checkpoint": "",
            "sections": (),
            "command": str(start.get("command") or facts.verdict.command),
        }
        if state is not None:
            mark = state.last_checkpoint
            found[rank] |= {
                "host": state.host or found[rank]["host"],
                "pid": state.pid,
                "state": state.state,
                "phase": state.phase or "",
                "step": state.step,
                "checkpoint": f"{mark.number} {mark.name}" if mark is not None else "",
                "sections": state.open_sections,
            }
    return found


def step_table(facts: PageFacts) -> Block | None:
    """The slowest ranks' mean steps, the median last; None where no rank has timed its steps.

    A row says whether it has more work of its own than the others, and its cells: the rank, steps
    timed, step, loader, forward, rest, times the median, trend.
    """
    found = find_stragglers(facts.case)
    if found is None:
        return None

    def cells(mean: StepTimes) -> tuple[str, ...]:
        return tuple(map(seconds_in_words, (mean.seconds, *mean.parts)))

    rows = []
    for number, one in enumerate(found.ranks[:MOST_TIMED]):
        trend = trend_words(one.trend) if one.trend is not None else ""
        row = (str(one.rank), str(one.steps), *cells(one.mean), f"{one.ratio:.1f}", trend)
        rows.append((found.stands_out and number == 0, row))
    if len(found.ranks) > 1:
        rows.append((False, ("median", "", *cells(found.typical), "", "")))
    return {"rows": rows, "left_out": max(0, len(found.ranks) - MOST_TIMED)}


def collective_grids(facts: PageFacts) -> list[Block]:
    """The groups of which the flight records tell, a column a number, first where ranks part."""
    groups: dict[str, dict[int, CollectiveRecord]] = {}
    for rank, view in facts.views.items():
        for record in view.flight.groups if view.flight is not None else ():
            if rank in record.ranks or not record.ranks:  # others know of the group, too
                groups.setdefault(record.group, {})[rank] = record
    culprits = frozenset(facts.verdict.culprits)
    grids = [_grid(name, records, culprits) for name, records in groups.items()]
    return sorted((one for one in grids if one["numbers"]), key=lambda one: one["alike"])[
        :MOST_GROUPS
    ]


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
            ("apart", operation) if differs and operation else (entered, operation)
            for (entered, operation), differs in zip(row, apart, strict=True)
        )
        rows.setdefault(marked, []).append(rank)
    ordered = sorted(rows.items(), key=lambda row: (culprits.isdisjoint(row[1]), row[1]))
    told = (one.description for one in records.values())
    seen = {entered for row, _ in ordered for entered, _ in row}
    return {
        "group": group_title(name, next((text for text in told if text not in ("", UNNAMED)), "")),
        "numbers": numbers,
        "rows": [
            (name_ranks(ranks), not culprits.isdisjoint(ranks), row)
            for row, ranks in ordered[:MOST_ROWS]
        ],
        "rows_left_out": max(0, len(ordered) - MOST_ROWS),
        "alike": seen.isdisjoint(("missing", "apart")),
    }


def differences(facts: PageFacts) -> list[tuple[str, list[tuple[str, str]]]]:
    """Compare all ranks that run.json has, and what the shown ones' journals tell of their start.

    Returns:
        Names of what differs, each with its values and who has which, that of most ranks first.
    """
    ranks = facts.record.ranks if facts.record is not None else ()
    told = {"host": {one.rank: one.host for one in ranks}}
    for name in sorted({name for one in ranks for name in one.environment} - OWN):
        told[name] = {one.rank: one.environment.get(name, NOT_SET) for one in ranks}
    for name in ("command", "folder", "launcher"):
        told[name] = {rank: str(start.get(name, "")) for rank, start in facts.starts.items()}
    versions = {
        rank: found if isinstance(found := start.get("versions"), dict) else {}
        for rank, start in facts.starts.items()
    }
    for name in sorted({str(name) for found in versions.values() for name in found}):
        by_rank = {rank: str(found.get(name, "")) for rank, found in versions.items()}
        told[f"version of {name}"] = by_rank
    shown = []
    for name, values in told.items():
        spread = by_value(values, MOST_VALUES, LONGEST_VALUE)
        if len(spread) > 1:
            shown.append((name, [(value, name_ranks(who)) for value, who in spread]))
    # times in logs of these nodes do not compare with the first one's
    clocks = [
        (f"{one.ahead_s:+.2f} s, within {one.within_s:.2f} s", f"node {one.node}")
        for one in (facts.record.clocks if facts.record is not None else ())
        if one.differs
    ]
    return [*shown, *([("clock, ahead of node 0's", clocks)] if clocks else [])]


class Line(NamedTuple):
    """One frame, or several of libraries that are folded into one line."""

    key: str
    text: str
    is_users: bool
    folded: tuple[str, ...] = ()


Stack = tuple[tuple[str, ...], frozenset[int]]
"""Frames and the ranks in them."""


def stack_trees(verdict: Verdict) -> list[tuple[str, list[Block], int]]:
    """Merge the stacks of the ranks, and those of their workers: title, branches, how many more."""
    culprits = frozenset(verdict.culprits)
    trees = []
    for process, title in (("rank", "ranks"), ("worker", "DataLoader workers of ranks")):
        stacks = [
            (one.frames, frozenset(parse_ranks(one.ranks)))
            for one in verdict.stack_groups  # the largest first
            if one.process == process
        ]
        blamed_first = sorted(stacks, key=lambda one: culprits.isdisjoint(one[1]))
        so_far = accumulate(len(frames) for frames, _ in blamed_first)
        kept = [one for one, sum_ in zip(blamed_first, so_far, strict=True) if sum_ <= MOST_FRAMES]
        if kept:
            everybody = frozenset().union(*(ranks for _, ranks in kept))
            branches = _branches(kept, f"frame-{process}", everybody, culprits)
            trees.append((title, branches, len(stacks) - len(kept)))
    return trees


def _branches(
    stacks: Iterable[Stack], key: str, everybody: frozenset[int], culprits: frozenset[int]
) -> list[Block]:
    """Runs of frames that the same ranks share, each with what follows where they part."""
    nexts: dict[str, list[Stack]] = {}
    for frames, ranks in stacks:
        if frames:
            nexts.setdefault(frames[0], []).append((frames, ranks))
    branches = []
    for number, together in enumerate(nexts.values(), start=1):
        depth = _shared([frames for frames, _ in together])
        inside = frozenset().union(*(ranks for _, ranks in together))
        below = [(frames[depth:], ranks) for frames, ranks in together]
        branches.append(
            {
                "lines": folded_lines(together[0][0][:depth], f"{key}.{number}"),
                "inside": shortened(format_ranks(inside), LONGEST_RANKS),
                "outside": shortened(format_ranks(everybody - inside), LONGEST_RANKS),
                "has_culprit": bool(inside & culprits),
                "branches": _branches(below, f"{key}.{number}", everybody, culprits),
            }
        )
    return branches


def _shared(stacks: Sequence[Sequence[str]]) -> int:
    """How many frames all of them begin with."""
    columns = enumerate(zip(*stacks))  # noqa: B905 - as far as all go
    return next((at for at, column in columns if len(set(column)) > 1), min(map(len, stacks)))


class StackDiff(NamedTuple):
    """Where an odd group of ranks leaves the way of the majority."""

    odd: str
    majority: str
    shared: tuple[str, ...]
    odd_frames: tuple[str, ...]
    majority_frames: tuple[str, ...]


def stack_diff(verdict: Verdict) -> StackDiff | None:
    """Set the stack of the first culprit against that of most others; None without two stacks."""
    culprits = set(verdict.culprits)
    groups = [group for group in verdict.stack_groups if group.process == "rank" and group.frames]
    odd = next((group for group in groups if culprits & set(parse_ranks(group.ranks))), None)
    others = [group for group in groups if group is not odd]
    if odd is None or not others:
        return None
    most = max(others, key=lambda group: group.count)
    apart = _shared([odd.frames, most.frames])
    return StackDiff(
        odd=name_ranks(parse_ranks(odd.ranks)),
        majority=name_ranks(parse_ranks(most.ranks)),
        shared=odd.frames[:apart],
        odd_frames=odd.frames[apart:],
        majority_frames=most.frames[apart:],
    )


def folded_lines(frames: Sequence[str], key: str) -> list[Line]:
    """Fold each run of frames that are not the user's into one line.

    Args:
        frames: Outermost first, each ``func (file:line)``.
        key: Of the frames' permalinks, a number behind it.
    """
    lines: list[Line] = []
    at = 0
    for package, run in groupby(frames, key=_package):
        together = tuple(run)
        if not package or len(together) == 1:
            for number, frame in enumerate(together, start=at):
                lines.append(Line(f"{key}-{number}", frame, not package))
        else:
            shown = f"{len(together)} frames of {package}, innermost {together[-1]}"
            lines.append(Line(f"{key}-{at}", shown, False, together))
        at += len(together)
    return lines


def _package(text: str) -> str:
    """Whose code a frame is; empty of the user's."""
    frame = Frame.parse(text)
    owner = owner_of(frame.file) if frame is not None else None
    if owner is None:
        return "unknown files"
    named = {"user": "", "standard": "Python", "ours": "this tool", "framework": owner.package}
    return named[owner.kind]


def shortened(text: str, most: int) -> str:
    """Cut a text to so many characters, the last of which then says that there is more."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def kernel_rows(facts: PageFacts) -> list[tuple[int, tuple[str, ...]]]:
    """The processes of the shown ranks as the kernel last showed them, culprits first.

    Returns:
        Of each its rank, and its cells: who, pid, state, CPU, memory, where the main thread is,
        what it waits for, GPUs.
    """
    rows: list[tuple[int, tuple[str, ...]]] = []
    for rank, look in _looks(facts, len(facts.shown)):
        sample = next((one for one in reversed(look.samples) if one.kernel is not None), None)
        if sample is None or (kernel := sample.kernel) is None:
            continue
        waits = []
        for target in kernel.threads[0].waits_for if kernel.threads else ():
            held = " ".join(f"{holder.program} (pid {holder.pid})" for holder in target.holders)
            shown = f"{target.call}: {target.kind} {target.name}".rstrip()
            waits.append(shown + (f", by {held}" if held else ""))
        gpus = [
            f"GPU {gpu.index}" + ("" if gpu.busy_percent is None else f" {gpu.busy_percent} % busy")
            for gpu in sample.gpus
        ]
        cells = (
            name_process(rank, look),
            str(look.pid),
            kernel.state,
            f"{kernel.cpu_s:.2f} s",
            bytes_in_words(kernel.rss_bytes),
            kernel.threads[0].wchan if kernel.threads else "",
            ", ".join(waits),
            ", ".join(gpus),
        )
        rows.append((rank, cells))
    return rows


def shown_processes(facts: PageFacts) -> list[Block]:
    """The threads of culprits, and of one rank of each other group, as far as they fit."""
    found: list[Block] = []
    left = MOST_FRAMES_IN_ALL
    for rank, look in _looks(facts, MOST_OPENED):
        sample = next((one for one in reversed(look.samples) if one.stack is not None), None)
        if sample is None or sample.stack is None:
            continue
        left -= sum(len(thread.frames) for thread in sample.stack.threads[:MOST_THREADS])
        if left < 0 and found:
            break
        # local variables of the innermost call of which somebody asked for them
        asked = (
            one
            for earlier in reversed(look.samples)
            for one in reversed(earlier.local_values)
            if not is_ours(one.frame.file)
        )
        innermost = next(asked, None)
        values = innermost.values.items() if innermost is not None else ()
        function = innermost.frame.function if innermost is not None else ""
        by_kernel = {one.tid: one for one in (sample.kernel.threads if sample.kernel else ())}
        threads = []
        for number, thread in enumerate(shown_threads(sample.stack)[:MOST_THREADS]):
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
                "who": name_process(rank, look),
                "rank": rank,
                "pid": look.pid,
                "source": sample.stack.source,
                "threads": threads,
                "native_calls": sample.native_calls,
                "local_values": [(f"{function}: {name}", value) for name, value in values],
            }
        )
    return found


def _looks(facts: PageFacts, most: int) -> Iterator[tuple[int, ProcessLook]]:
    culprits = frozenset(facts.verdict.culprits)
    for rank in sorted(facts.shown, key=lambda one: one not in culprits)[:most]:
        view = facts.views.get(rank)
        for look in view.processes[:MOST_PROCESSES] if view is not None else ():
            yield rank, look
