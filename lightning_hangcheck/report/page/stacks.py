"""Stacks merged over ranks, their difference, threads one by one, and what the kernel says."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.model.code_owner import is_ours, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.report.page.history import views_of
from lightning_hangcheck.report.page.wait_graph import shortened
from lightning_hangcheck.report.verdict_text import name_ranks
from lightning_hangcheck.text.shown import bytes_in_words, format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.evidence import (
        GpuState,
        ProcessLook,
        ProcessState,
        Sample,
        ThreadState,
        WaitTarget,
    )
    from lightning_hangcheck.model.verdict import StackGroup, Verdict
    from lightning_hangcheck.report.page.page_facts import PageFacts

MOST_FRAMES = 1_600
"""Of the stacks that are merged (the culprits', then the largest others'), were none shared; some
300 bytes each on the page."""
LONGEST_RANKS = 60


class Line(Struct, frozen=True):
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


class Branch(Struct, frozen=True, kw_only=True):
    """A run of frames that the same ranks share, and what follows where they part.

    Attributes:
        inside: The ranks in these frames.
        outside: The other ranks that have a stack; empty where there is none.
        has_culprit: Some of them are culprits.
    """

    lines: tuple[Line, ...]
    inside: str
    outside: str
    has_culprit: bool
    branches: tuple[Branch, ...] = ()


class StackDiff(Struct, frozen=True, kw_only=True):
    """Where an odd group of ranks leaves the way of the majority."""

    odd: str
    majority: str
    shared: tuple[str, ...]
    odd_frames: tuple[Line, ...]
    majority_frames: tuple[Line, ...]


class StackTree(Struct, frozen=True, kw_only=True):
    """The merged stacks of one kind of process."""

    title: str
    branches: tuple[Branch, ...]
    left_out: int


def stack_trees(verdict: Verdict) -> tuple[StackTree, ...]:
    """Merge the stacks of the ranks, and those of their workers."""
    trees = []
    for process, title in (("rank", "ranks"), ("worker", "DataLoader workers of ranks")):
        every = [one for one in verdict.stack_groups if one.process == process]
        groups = _chosen(every, verdict)
        if groups:
            stacks = [(group.frames, frozenset(parse_ranks(group.ranks))) for group in groups]
            tree = _Tree(process, frozenset(verdict.culprits), stacks)
            left_out = len(every) - len(groups)
            trees.append(StackTree(title=title, branches=tree.branches(), left_out=left_out))
    return tuple(trees)


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
    pairs = enumerate(zip(odd.frames, most.frames))  # noqa: B905 - as far as both go
    shortest = min(len(odd.frames), len(most.frames))
    apart = next((at for at, (one, other) in pairs if one != other), shortest)
    return StackDiff(
        odd=name_ranks(parse_ranks(odd.ranks)),
        majority=name_ranks(parse_ranks(most.ranks)),
        shared=odd.frames[:apart],
        odd_frames=tuple(folded_lines(odd.frames[apart:], "odd")),
        majority_frames=tuple(folded_lines(most.frames[apart:], "majority")),
    )


def folded_lines(frames: Sequence[str], key: str) -> Iterator[Line]:
    """Fold each run of frames that are not the user's into one line.

    Args:
        frames: Outermost first, each ``func (file:line)``.
        key: Of the frames' permalinks, a number behind it.
    """
    at = 0
    for package, run in groupby(frames, key=_package):
        together = tuple(run)
        if not package or len(together) == 1:
            for frame in together:
                yield Line(f"{key}-{at}", frame, not package)
                at += 1
        else:
            shown = f"{len(together)} frames of {package}, innermost {together[-1]}"
            yield Line(f"{key}-{at}", shown, False, together)
            at += len(together)


def _package(text: str) -> str:
    """Whose code a frame is; empty of the user's."""
    frame = Frame.parse(text)
    owner = owner_of(frame.file) if frame is not None else None
    if owner is None:
        return "unknown files"
    named = {"user": "", "standard": "Python", "ours": "this tool", "framework": owner.package}
    return named[owner.kind]


def _chosen(groups: Sequence[StackGroup], verdict: Verdict) -> list[StackGroup]:
    """They come largest first."""
    culprits = set(verdict.culprits)
    blamed_first = sorted(groups, key=lambda one: culprits.isdisjoint(parse_ranks(one.ranks)))
    so_far = accumulate(len(group.frames) for group in blamed_first)
    return [one for one, frames in zip(blamed_first, so_far, strict=True) if frames <= MOST_FRAMES]


class _Tree:
    """Merges stacks; numbers its frames."""

    def __init__(
        self,
        name: str,
        culprits: frozenset[int],
        stacks: Sequence[tuple[Sequence[str], frozenset[int]]],
    ) -> None:
        self._name = name
        self._culprits = culprits
        self._stacks = stacks
        self._everybody = frozenset().union(*(ranks for _, ranks in stacks))
        self._runs = 0

    def branches(self) -> tuple[Branch, ...]:
        return self._below([(tuple(frames), ranks) for frames, ranks in self._stacks])

    def _below(
        self, stacks: Iterable[tuple[tuple[str, ...], frozenset[int]]]
    ) -> tuple[Branch, ...]:
        nexts: dict[str, list[tuple[tuple[str, ...], frozenset[int]]]] = {}
        for frames, ranks in stacks:
            if frames:
                nexts.setdefault(frames[0], []).append((frames, ranks))
        return tuple(self._branch(together) for together in nexts.values())

    def _branch(self, together: list[tuple[tuple[str, ...], frozenset[int]]]) -> Branch:
        first = together[0][0]
        depth = next(
            (
                at
                for at in range(1, len(first))
                if any(len(frames) <= at or frames[at] != first[at] for frames, _ in together)
            ),
            len(first),
        )
        inside = frozenset().union(*(ranks for _, ranks in together))
        self._runs += 1
        return Branch(
            lines=tuple(folded_lines(first[:depth], f"frame-{self._name}-{self._runs}")),
            inside=shortened(format_ranks(inside), LONGEST_RANKS),
            outside=shortened(format_ranks(self._everybody - inside), LONGEST_RANKS),
            has_culprit=bool(inside & self._culprits),
            branches=self._below((frames[depth:], ranks) for frames, ranks in together),
        )


MOST_OPENED = 12
"""Ranks whose threads are shown, culprits first."""
MOST_PROCESSES, MOST_THREADS = 6, 24
"""Of a rank, and of a process with Python frames."""
MOST_FRAMES_IN_ALL = 1_200
"""Of all processes together, some 250 bytes each on the page."""


class KernelRow(Struct, frozen=True, kw_only=True):
    """One process as the kernel last showed it."""

    who: str
    rank: int
    pid: int
    state: str
    cpu_s: str
    memory: str
    waits_in: str
    waits_for: str
    gpus: str


class ShownThread(Struct, frozen=True, kw_only=True):
    """One thread with its frames, outermost first."""

    key: str
    name: str
    marks: str
    lines: tuple[Line, ...]


class ShownProcess(Struct, frozen=True, kw_only=True):
    """One process with its threads."""

    who: str
    rank: int
    pid: int
    source: str
    threads: tuple[ShownThread, ...]
    native_calls: tuple[str, ...]
    local_values: tuple[tuple[str, str], ...]


def kernel_rows(facts: PageFacts) -> tuple[KernelRow, ...]:
    """Return the processes of the shown ranks, those of culprits first."""
    return tuple(
        _row(rank, look, sample, sample.kernel)
        for rank, look in _looks(facts, len(facts.shown))
        for sample in _newest(look)
        if sample.kernel is not None
    )


def shown_processes(facts: PageFacts) -> tuple[ShownProcess, ...]:
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
        found.append(
            ShownProcess(
                who=_who(rank, look),
                rank=rank,
                pid=look.pid,
                source=sample.stack.source,
                threads=tuple(_threads(rank, look.pid, sample)),
                native_calls=sample.native_calls,
                local_values=_local_values(look),
            )
        )
    return tuple(found)


def _looks(facts: PageFacts, most: int) -> Iterator[tuple[int, ProcessLook]]:
    views = views_of(facts)
    culprits = frozenset(facts.verdict.culprits)
    for rank in sorted(facts.shown, key=lambda one: one not in culprits)[:most]:
        view = views.get(rank)
        for look in view.processes[:MOST_PROCESSES] if view is not None else ():
            yield rank, look


def _who(rank: int, look: ProcessLook) -> str:
    return f"rank {rank}" if look.role == "rank" else f"{look.role} {rank}/{look.index}"


def _newest(look: ProcessLook) -> list[Sample]:
    return [one for one in look.samples if one.kernel is not None][-1:]


def _row(rank: int, look: ProcessLook, sample: Sample, kernel: ProcessState) -> KernelRow:
    main = kernel.threads[0] if kernel.threads else None
    return KernelRow(
        who=_who(rank, look),
        rank=rank,
        pid=look.pid,
        state=kernel.state,
        cpu_s=f"{kernel.cpu_s:.2f} s",
        memory=bytes_in_words(kernel.rss_bytes),
        waits_in=main.wchan if main is not None else "",
        waits_for=", ".join(map(_target, main.waits_for)) if main is not None else "",
        gpus=", ".join(map(_gpu, sample.gpus)),
    )


def _target(target: WaitTarget) -> str:
    held = " ".join(f"{holder.program} (pid {holder.pid})" for holder in target.holders)
    return f"{target.call}: {target.kind} {target.name}".rstrip() + (f", by {held}" if held else "")


def _gpu(gpu: GpuState) -> str:
    busy = "" if gpu.busy_percent is None else f" {gpu.busy_percent} % busy"
    return f"GPU {gpu.index}{busy}"


def _threads(rank: int, pid: int, sample: Sample) -> Iterator[ShownThread]:
    kernel: dict[int, ThreadState] = (
        {} if sample.kernel is None else {one.tid: one for one in sample.kernel.threads}
    )
    threads = shown_threads(sample.stack) if sample.stack is not None else ()
    for number, thread in enumerate(threads[:MOST_THREADS]):
        known = kernel.get(thread.tid or 0)
        key = f"rank-{rank}-pid-{pid}-thread-{thread.tid or number}"
        marks = [
            "holds the interpreter lock" if thread.owns_gil else "",
            "takes a lock" if thread.takes_lock else "",
            f"state {known.state}" if known is not None else "",
            f"in {known.wchan}" if known is not None and known.wchan else "",
        ]
        yield ShownThread(
            key=key,
            name=f"{thread.name or 'thread'} {thread.tid or ''}".strip(),
            marks=", ".join(filter(None, marks)),
            lines=tuple(folded_lines([str(frame) for frame in thread.frames], f"{key}-frame")),
        )


def _local_values(look: ProcessLook) -> tuple[tuple[str, str], ...]:
    """Of the innermost call of which somebody asked for them."""
    for sample in reversed(look.samples):
        theirs = [one for one in sample.local_values if not is_ours(one.frame.file)]
        if theirs:
            innermost = theirs[-1]
            return tuple(
                (f"{innermost.frame.function}: {k}", v) for k, v in innermost.values.items()
            )
    return ()
