"""One look at one process, or at all of them at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Gap, ProcessStack, ProcessState, Sample
from lightning_hangcheck.probes.gpu.use import Gpus, gpus_of
from lightning_hangcheck.probes.kernel import kernel_state, led_by, with_threads_of
from lightning_hangcheck.probes.stacks.local_values import local_values
from lightning_hangcheck.probes.stacks.native_calls import native_calls
from lightning_hangcheck.probes.stacks.python_stacks import PY_SPY, python_stacks
from lightning_hangcheck.probes.stacks.signalled_stacks import or_by_signal
from lightning_hangcheck.probes.stacks.training_thread import training_first
from lightning_hangcheck.probes.waits.bystanders import with_bystanders
from lightning_hangcheck.probes.waits.holders import with_holders
from lightning_hangcheck.probes.waits.locks.polled_locks import polled_locks
from lightning_hangcheck.probes.waits.thread_variables import with_variables
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.time_limit import guarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.model.evidence import WaitTarget

AT_ONCE = 16
GPU_LIMIT_S = 2.0
NATIVE_LIMIT_S = 3.0
KERNEL_SHARE = 0.2  # of the time; about 6 ms are enough for 200 threads
Sampled = tuple[Sample, tuple[Gap, ...]]


class Subject(Struct, frozen=True, kw_only=True):
    """A process to take a sample of.

    Attributes:
        rank: Whose, for gaps.
        python: Whether it can have Python stacks; of another program none are asked for.
        local_values: Whether to read its local variables too.
        closer: Whether to read its native calls too, where the kernel does not tell what it waits
            for. That alone pauses the process.
        trains: It is the rank's own process, not a helper of it: the thread that trains comes
            first, where that is not the main one.
    """

    pid: int
    rank: int | None = None
    python: bool = True
    local_values: bool = False
    closer: bool = False
    trains: bool = False


def sample(pid: int, rank: int | None, time_limit_s: float, *, trains: bool = False) -> Sampled:
    """Take kernel state and stacks of one process, which runs on meanwhile.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        time_limit_s: Seconds for both together.
        trains: As in `Subject`.

    Returns:
        The sample, parts that could not be taken being None, and why.
    """
    taken_ns = time.monotonic_ns()
    kernel, kernel_gaps = kernel_state(pid, rank, time_limit_s * KERNEL_SHARE)
    left_s = time_limit_s - (time.monotonic_ns() - taken_ns) / NANOSECONDS
    stack, stack_gaps = python_stacks(pid, rank, left_s)
    if stack is None:
        stack, stack_gaps = or_by_signal(pid, rank, stack_gaps)
    if kernel is not None and stack is not None:
        kernel = with_threads_of(kernel, stack)
        if trains:
            stack = training_first(stack)
            kernel = led_by(kernel, stack.threads[0].tid)
        left_s = time_limit_s - (time.monotonic_ns() - taken_ns) / NANOSECONDS
        kernel = _with_polled_locks(kernel, stack, left_s)
        if stack.source == PY_SPY:
            left_s = time_limit_s - (time.monotonic_ns() - taken_ns) / NANOSECONDS
            stack = with_variables(stack, kernel, left_s)
        left_s = time_limit_s - (time.monotonic_ns() - taken_ns) / NANOSECONDS
        stack = with_bystanders(stack, left_s)
    return Sample(taken_ns=taken_ns, kernel=kernel, stack=stack), kernel_gaps + stack_gaps


def _with_polled_locks(
    kernel: ProcessState, stack: ProcessStack, time_limit_s: float
) -> ProcessState:
    """A thread that polls for a lock sleeps, as the kernel sees it: its stack knows better."""
    asleep = {one.tid for one in kernel.threads if _only_times(one.waits_for)}
    locks = polled_locks(stack, asleep, time_limit_s)
    threads = tuple(
        replace(one, waits_for=(locks[one.tid], *filter(_is_time, one.waits_for)))
        if one.tid in locks
        else one
        for one in kernel.threads
    )
    return replace(kernel, threads=threads)


def _only_times(targets: Sequence[WaitTarget]) -> bool:
    return bool(targets) and all(map(_is_time, targets))


def _is_time(target: WaitTarget) -> bool:
    return target.kind == "time"


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
    everyone = list(subjects)
    with ThreadPoolExecutor(AT_ONCE + 1, thread_name_prefix="hangcheck-probe") as pool:
        pids = [one.pid for one in everyone if one.python]
        asked = pool.submit(gpus_of, pids, min(time_limit_s, GPU_LIMIT_S))
        taken = list(pool.map(lambda subject: _sample_of(subject, time_limit_s), everyone))
        gpus, gaps = asked.result()
    return _with_gpus(_completed(taken), everyone, gpus or {}, gaps)


def _with_gpus(
    taken: list[Sampled], subjects: list[Subject], gpus: Gpus, gaps: tuple[Gap, ...]
) -> list[Sampled]:
    return [
        (replace(one, gpus=gpus.get(subject.pid, ())), own + (gaps if number == 0 else ()))
        for number, ((one, own), subject) in enumerate(zip(taken, subjects, strict=True))
    ]


def _completed(taken: list[Sampled]) -> list[Sampled]:
    """Add what only all processes together show; where that fails, say so once."""
    states = [one.kernel for one, _ in taken if one.kernel is not None]
    found, gaps = guarded("holders", "who holds what", None, lambda: (with_holders(states), ()))
    complete = {state.pid: state for state in found or states}
    joined = [
        (replace(one, kernel=complete[one.kernel.pid]) if one.kernel is not None else one, own)
        for one, own in taken
    ]
    return [(one, own + (gaps if number == 0 else ())) for number, (one, own) in enumerate(joined)]


def _with_values(taken: Sampled, subject: Subject, time_limit_s: float) -> Sampled:
    """Read variables where a stack was to be had: elsewhere its own gap says enough."""
    one, gaps = taken
    if one.stack is None or one.stack.source != PY_SPY:
        return taken
    tid = one.stack.threads[0].tid or subject.pid
    values, unseen = local_values(subject.pid, subject.rank, time_limit_s, tid)
    return replace(one, local_values=values or ()), gaps + unseen


def _with_native_calls(taken: Sampled, subject: Subject) -> Sampled:
    one, gaps = taken
    if one.kernel is None or one.stack is None or one.stack.source != PY_SPY:
        return taken
    waits = one.kernel.threads[0].waits_for if one.kernel.threads else ()
    known = any(target.kind != "time" for target in waits)
    if known or _cannot_be_paused(one.kernel):
        return taken
    tid = one.stack.threads[0].tid or subject.pid
    calls, unseen = native_calls(subject.pid, subject.rank, NATIVE_LIMIT_S, tid)
    return replace(one, native_calls=calls or ()), gaps + unseen


def _sample_of(subject: Subject, time_limit_s: float) -> Sampled:
    if subject.python:
        taken = sample(subject.pid, subject.rank, time_limit_s, trains=subject.trains)
        taken = _with_values(taken, subject, time_limit_s) if subject.local_values else taken
        return _with_native_calls(taken, subject) if subject.closer else taken
    taken_ns = time.monotonic_ns()
    kernel, gaps = kernel_state(subject.pid, subject.rank, time_limit_s)
    return Sample(taken_ns=taken_ns, kernel=kernel), gaps
