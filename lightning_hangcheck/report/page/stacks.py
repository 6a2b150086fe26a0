"""Stacks merged over ranks, their difference, threads one by one, and what the kernel says."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.model.code_owner import is_ours, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.report.verdict_text import name_process, name_ranks
from lightning_hangcheck.text.shown import bytes_in_words, format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.evidence import ProcessLook, Sample
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.report.page.page_facts import PageFacts

MOST_FRAMES = 1_600
"""Of the stacks that are merged (the culprits', then the largest others'), were none shared; some
300 bytes each on the page."""
LONGEST_RANKS = 60
MOST_OPENED = 12
"""Ranks whose threads are shown, culprits first."""
MOST_PROCESSES, MOST_THREADS = 6, 24
"""Of a rank, and of a process with Python frames."""
MOST_FRAMES_IN_ALL = 1_200
"""Of all processes together, some 250 bytes each on the page."""


class Line(NamedTuple):
    """One frame, or several of libraries that are folded into one line.

    Attributes:
        key: Unique on the page.
        text: The frame, or what is folded.
        is_users: The user's own code.
        folded: The frames behind the line; none where it is a frame itself.
    """

    key: str
    text: str
    is_users: bool
    folded: tuple[str, ...] = ()


class Branch(NamedTuple):
    """A run of frames that the same ranks share, and what follows where they part.

    Attributes:
        inside: The ranks in these frames.
        outside: The other ranks that have a stack; empty where there is none.
        has_culprit: Some of them are culprits.
    """

    lines: list[Line]
    inside: str
    outside: str
    has_culprit: bool
    branches: list[Branch]


class StackDiff(NamedTuple):
    """Where an odd group of ranks leaves the way of the majority."""

    odd: str
    majority: str
    shared: tuple[str, ...]
    odd_frames: list[Line]
    majority_frames: list[Line]


class StackTree(NamedTuple):
    """The merged stacks of one kind of process."""

    title: str
    branches: list[Branch]
    left_out: int


Stack = tuple[tuple[str, ...], frozenset[int]]
"""Frames and the ranks in them."""


def stack_trees(verdict: Verdict) -> list[StackTree]:
    """Merge the stacks of the ranks, and those of their workers."""
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
            trees.append(StackTree(title, branches, len(stacks) - len(kept)))
    return trees


def _branches(
    stacks: Iterable[Stack], key: str, everybody: frozenset[int], culprits: frozenset[int]
) -> list[Branch]:
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
            Branch(
                lines=folded_lines(together[0][0][:depth], f"{key}.{number}"),
                inside=shortened(format_ranks(inside), LONGEST_RANKS),
                outside=shortened(format_ranks(everybody - inside), LONGEST_RANKS),
                has_culprit=bool(inside & culprits),
                branches=_branches(below, f"{key}.{number}", everybody, culprits),
            )
        )
    return branches


def _shared(stacks: Sequence[Sequence[str]]) -> int:
    """How many frames all of them begin with."""
    columns = enumerate(zip(*stacks))  # noqa: B905 - as far as all go
    return next((at for at, column in columns if len(set(column)) > 1), min(map(len, stacks)))


def stack_diff(verdict: Verdict) -> StackDiff | None:
    """Set the stack of the first culprit against that of most other ranks.

    Returns:
        None where there are no two stacks of ranks.
    """
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
        odd_frames=folded_lines(odd.frames[apart:], "odd"),
        majority_frames=folded_lines(most.frames[apart:], "majority"),
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


class ShownProcess(NamedTuple):
    """One process with its threads: key, name, marks and frames of each."""

    who: str
    rank: int
    pid: int
    source: str
    threads: list[tuple[str, str, str, list[Line]]]
    native_calls: tuple[str, ...]
    local_values: list[tuple[str, str]]


def kernel_rows(facts: PageFacts) -> list[tuple[int, tuple[str, ...]]]:
    """Return the processes of the shown ranks as the kernel last showed them, culprits first.

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


def shown_processes(facts: PageFacts) -> list[ShownProcess]:
    """Return the threads of culprits, and of one rank of each other group, as far as they fit."""
    found: list[ShownProcess] = []
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
        found.append(
            ShownProcess(
                who=name_process(rank, look),
                rank=rank,
                pid=look.pid,
                source=sample.stack.source,
                threads=list(_threads(f"rank-{rank}-pid-{look.pid}", sample)),
                native_calls=sample.native_calls,
                local_values=[(f"{function}: {name}", value) for name, value in values],
            )
        )
    return found


def _looks(facts: PageFacts, most: int) -> Iterator[tuple[int, ProcessLook]]:
    culprits = frozenset(facts.verdict.culprits)
    for rank in sorted(facts.shown, key=lambda one: one not in culprits)[:most]:
        view = facts.views.get(rank)
        for look in view.processes[:MOST_PROCESSES] if view is not None else ():
            yield rank, look


def _threads(key: str, sample: Sample) -> Iterator[tuple[str, str, str, list[Line]]]:
    kernel = {one.tid: one for one in (sample.kernel.threads if sample.kernel else ())}
    threads = shown_threads(sample.stack) if sample.stack is not None else ()
    for number, thread in enumerate(threads[:MOST_THREADS]):
        known = kernel.get(thread.tid or 0)
        marks = [
            "holds the interpreter lock" if thread.owns_gil else "",
            "takes a lock" if thread.takes_lock else "",
            f"state {known.state}" if known is not None else "",
            f"in {known.wchan}" if known is not None and known.wchan else "",
        ]
        of_thread = f"{key}-thread-{thread.tid or number}"
        name = f"{thread.name or 'thread'} {thread.tid or ''}".strip()
        lines = folded_lines([str(frame) for frame in thread.frames], f"{of_thread}-frame")
        yield of_thread, name, ", ".join(filter(None, marks)), lines
