"""Every stack of a case as text, as it was sampled but for our own calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.text.amounts import several
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.text.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import ProcessLook, Sample, ThreadStack


def render_stacks(case: Case) -> str:
    """Write every sample of every process, oldest first, frames outermost first.

    Args:
        case: As it was judged.

    Returns:
        Text that ends in a newline; what could not be seen stands at its end.
    """
    lines = [f"stacks of run {case.run.run_id}, taken at {case.taken_at}"]
    for view in case.ranks:
        for look in view.processes:
            lines += ["", *_process(view.rank, look, case.taken_ns)]
    if case.gaps:
        lines += ["", "not seen"]
    for gap in case.gaps:
        whose = "" if gap.rank is None else f"rank {gap.rank}: "
        lines.append(f"  {whose}{gap.what}: {gap.reason}")
    return "\n".join(map(visible, lines)) + "\n"


def _process(rank: int, look: ProcessLook, taken_ns: int) -> Iterator[str]:
    count = several(len(look.samples), "sample")
    who = f"rank {rank}" if look.role == "rank" else f"{look.role} {rank}/{look.index}"
    yield f"{who} (pid {look.pid}), {count}"
    for sample in look.samples:
        yield f"  {(taken_ns - sample.taken_ns) / NANOSECONDS:.1f} s before the end"
        yield from _sample(sample)


def _sample(sample: Sample) -> Iterator[str]:
    if sample.kernel is not None:
        kernel = sample.kernel
        waits = kernel.threads[0].wchan if kernel.threads else ""
        where = f", main thread in {waits}" if waits else ""
        yield f"    kernel: state {kernel.state}, {kernel.cpu_s:.2f} s CPU{where}"
    for thread in shown_threads(sample.stack) if sample.stack is not None else ():
        yield from _thread(thread)


def _thread(thread: ThreadStack) -> Iterator[str]:
    marks = [mark for mark, holds in (("active", thread.active), ("gil", thread.owns_gil)) if holds]
    shown = f" ({', '.join(marks)})" if marks else ""
    yield f"    thread {thread.name or thread.tid or '?'}{shown}"
    for frame in thread.frames:
        yield f"      {frame}"
