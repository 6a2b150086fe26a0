"""One look at one process, or at all of them at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Gap, ProcessStack, ProcessState, Sample
from lightning_hangcheck.probes.guard import guarded
from lightning_hangcheck.probes.holders import with_holders
from lightning_hangcheck.probes.kernel import kernel_state
from lightning_hangcheck.probes.polled_lock import polled_lock
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
        asleep: It has slept for long, so its stacks can be read without pausing it: that does not
            wake it, and the kernel goes on counting how long it has slept.
    """

    pid: int
    rank: int | None = None
    python: bool = True
    asleep: bool = False


def sample(
    pid: int, rank: int | None, time_limit_s: float, *, nonblocking: bool = False
) -> Sampled:
    """Take kernel state and stacks of one process: the state first, as stacks disturb it.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        time_limit_s: Seconds for both together.
        nonblocking: Never pause the process; see `python_stacks`.

    Returns:
        The sample, parts that could not be taken being None, and why.
    """
    taken_ns = time.monotonic_ns()
    kernel, kernel_gaps = kernel_state(pid, rank, time_limit_s * KERNEL_SHARE)
    stack, stack_gaps = python_stacks(
        pid,
        rank,
        time_limit_s - (time.monotonic_ns() - taken_ns) / 1e9,
        nonblocking=nonblocking or (kernel is not None and _cannot_be_paused(kernel)),
    )
    if kernel is not None and stack is not None:
        left_s = time_limit_s - (time.monotonic_ns() - taken_ns) / 1e9
        kernel = _with_polled_lock(kernel, stack, left_s, nonblocking=nonblocking)
    return Sample(taken_ns=taken_ns, kernel=kernel, stack=stack), kernel_gaps + stack_gaps


def _with_polled_lock(
    kernel: ProcessState, stack: ProcessStack, time_limit_s: float, *, nonblocking: bool
) -> ProcessState:
    """A thread that polls for a lock sleeps, as the kernel sees it: its stack knows better."""
    lock = polled_lock(stack, time_limit_s, nonblocking=nonblocking)
    if lock is None or not kernel.threads:
        return kernel
    main, *others = kernel.threads
    return replace(kernel, threads=(replace(main, waits_for=(lock,)), *others))


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
        taken = list(pool.map(lambda subject: _sample_of(subject, time_limit_s), subjects))
    return _completed(taken)


def _completed(taken: list[Sampled]) -> list[Sampled]:
    """Add what only all processes together show; where that fails, say so once."""
    states = [one.kernel for one, _ in taken if one.kernel is not None]
    found, gaps = guarded("who holds what", None, lambda: (with_holders(states), ()))
    complete = {state.pid: state for state in found or states}
    joined = [
        (replace(one, kernel=complete[one.kernel.pid]) if one.kernel is not None else one, own)
        for one, own in taken
    ]
    return [(one, own + (gaps if number == 0 else ())) for number, (one, own) in enumerate(joined)]


def _sample_of(subject: Subject, time_limit_s: float) -> Sampled:
    if subject.python:
        return sample(subject.pid, subject.rank, time_limit_s, nonblocking=subject.asleep)
    taken_ns = time.monotonic_ns()
    kernel, gaps = kernel_state(subject.pid, subject.rank, time_limit_s)
    return Sample(taken_ns=taken_ns, kernel=kernel), gaps
