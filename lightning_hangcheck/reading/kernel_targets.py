"""What a process that stands still waits for in the kernel: the same in its newest samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.wording import process_name
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import (
        Holder,
        ProcessLook,
        Sample,
        TargetKind,
        WaitTarget,
    )

WORKING_SHARE = 0.02
"""Share of a core above which a process outside the job works, as for ranks."""

TRICKLE = 1024
"""Bytes a second that such a process must read or write to count as working."""
POLLS = frozenset({"sleep", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})
"""Calls that may have a time limit, and wait for any of several things."""


def steady_targets(look: ProcessLook) -> tuple[WaitTarget, ...]:
    """Return what the main thread waits for now and waited for a sample ago.

    Futexes are left out: they are words of the process's own memory, and name nobody. So are
    time limits; see `limited`.
    """
    samples = [sample for sample in look.samples if sample.kernel is not None][-2:]
    if len(samples) < 2:
        return ()
    before = {(target.kind, target.name) for target in _targets(samples[0])}
    return tuple(
        target
        for target in _targets(samples[1])
        if target.kind not in ("futex", "time") and (target.kind, target.name) in before
    )


def limited(look: ProcessLook) -> bool:
    """Whether the call that its main thread is in ends by itself at a time: a sleep, a retry."""
    return _shows(look, "time")


def in_own_memory(look: ProcessLook) -> bool:
    """Whether its main thread waits, without a time limit, for a word that only it can change."""
    return _shows(look, "futex")


def _shows(look: ProcessLook, kind: TargetKind) -> bool:
    samples = [sample for sample in look.samples if sample.kernel is not None][-1:]
    return any(target.kind == kind for sample in samples for target in _targets(sample))


def works(look: ProcessLook, holder: Holder) -> bool:
    """Whether a process that holds something up worked between the newest samples."""
    samples = [sample for sample in look.samples if sample.kernel is not None][-2:]
    if len(samples) < 2:
        return False
    seconds = (samples[1].taken_ns - samples[0].taken_ns) / NANOSECONDS
    return any(
        holder.cpu_s - one.cpu_s > WORKING_SHARE * seconds
        or holder.moved_bytes - one.moved_bytes > TRICKLE * seconds
        for target in _targets(samples[0])
        for one in target.holders
        if one.pid == holder.pid
    )


def in_words(target: WaitTarget) -> str:
    """Say what a system call waits for: ``in flock for /data/a.lock, held by pid 7 (python)``."""
    holders = ", ".join(map(process_name, target.holders))
    what = target.name or f"a {target.kind}"
    if target.kind == "process":
        return f"in {target.call} for {holders or f'pid {what}'}"
    if target.kind == "lock":
        return f"in {target.call} for {what}" + (f", held by {holders}" if holders else "")
    return f"in {target.call} of {what}" + (f", at its other end {holders}" if holders else "")


def endless(targets: tuple[WaitTarget, ...]) -> bool:
    """Whether a process waits for one thing, without a time limit of the kernel's."""
    return bool(targets) and not any(target.call in POLLS for target in targets)


def _targets(sample: Sample) -> tuple[WaitTarget, ...]:
    threads = sample.kernel.threads if sample.kernel is not None else ()
    return threads[0].waits_for if threads else ()
