"""One look at one process, or at all of them at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import Gap, ProcessState, Sample
from lightning_hangcheck.probes.kernel import kernel_state
from lightning_hangcheck.probes.stacks import python_stacks

if TYPE_CHECKING:
    from collections.abc import Iterable

AT_ONCE = 16
KERNEL_SHARE = 0.2  # of the time; about 6 ms are enough for 200 threads
Sampled = tuple[Sample, tuple[Gap, ...]]


class Subject(Struct, frozen=True, kw_only=True):
    """A process to take a sample of.

    Attributes:
        rank: Whose, for gaps.
        python: Whether it can have Python stacks; of another program none are asked for.
    """

    pid: int
    rank: int | None = None
    python: bool = True


def sample(pid: int, rank: int | None, time_limit_s: float) -> Sampled:
    """Take kernel state and stacks of one process: the state first, as stacks disturb it.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        time_limit_s: Seconds for both together.

    Returns:
        The sample, parts that could not be taken being None, and why.
    """
    taken_ns = time.monotonic_ns()
    kernel, kernel_gaps = kernel_state(pid, rank, time_limit_s * KERNEL_SHARE)
    stack, stack_gaps = python_stacks(
        pid,
        rank,
        time_limit_s - (time.monotonic_ns() - taken_ns) / 1e9,
        nonblocking=kernel is not None and _cannot_be_paused(kernel),
    )
    return Sample(taken_ns=taken_ns, kernel=kernel, stack=stack), kernel_gaps + stack_gaps


def _cannot_be_paused(kernel: ProcessState) -> bool:
    """Stopped threads fail py-spy's pause, and one in state D would keep all others paused."""
    return kernel.state in "TtD" or any(thread.state in "TtD" for thread in kernel.threads)


def sample_all(subjects: Iterable[Subject], time_limit_s: float) -> list[Sampled]:
    """Take a sample of each process, 16 at once.

    About 40 ms for 8 small processes on 2 cores.

    Args:
        subjects: The processes.
        time_limit_s: Seconds for each of them; for all, as many times that as 16 goes into them.

    Returns:
        One for each target, in their order.
    """
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="hangcheck-probe") as pool:
        return list(pool.map(lambda subject: _sample_of(subject, time_limit_s), subjects))


def _sample_of(subject: Subject, time_limit_s: float) -> Sampled:
    if subject.python:
        return sample(subject.pid, subject.rank, time_limit_s)
    taken_ns = time.monotonic_ns()
    kernel, gaps = kernel_state(subject.pid, subject.rank, time_limit_s)
    return Sample(taken_ns=taken_ns, kernel=kernel), gaps
