"""What the kernel says of a process, and all threads of those ranks that a page opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.model.naming.code_owner import is_ours
from lightning_hangcheck.report.page.blocks.identities import views_of
from lightning_hangcheck.report.page.blocks.stack_tree import Line, folded_lines
from lightning_hangcheck.text.amounts import bytes_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.evidence import (
        GpuState,
        ProcessLook,
        ProcessState,
        Sample,
        ThreadState,
        WaitTarget,
    )
    from lightning_hangcheck.report.page.page_facts import PageFacts

MOST_OPENED = 12
"""Ranks whose threads are shown, culprits first."""
MOST_PROCESSES, MOST_THREADS = 6, 24
"""Of a rank, and of a process with Python frames."""
MOST_FRAMES = 1_200
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
    left = MOST_FRAMES
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
