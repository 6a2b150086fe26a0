"""What a process that stands still waits for in the kernel: the same in its newest samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.waits.remembered import remembered
from lightning_hangcheck.reading.waits.wait_chain import (
    IN_MEMORY,
    own_targets,
    slept_anew,
    wait_chain,
    wakes_itself,
)
from lightning_hangcheck.reading.wording import process_name
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import (
        Holder,
        ProcessLook,
        Sample,
        TargetKind,
        ThreadStack,
        ThreadState,
        WaitTarget,
    )

WORKING_SHARE = 0.02
"""Share of a core above which a process outside the job works, as for ranks."""

TRICKLE = 1024
"""Bytes a second that such a process must read or write to count as working."""
OUTSIDE: frozenset[TargetKind] = frozenset(
    {"lock", "file", "fifo", "terminal", "socket", "process"}
)
"""What no other thread of the process ends: a pipe may have both its ends in one process."""
SLEEP = "nanosleep"
"""In the names of the kernel's calls that wait for a time alone, and of its functions for them."""
POLLS = frozenset({"sleep", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})
"""Calls that may have a time limit, and wait for any of several things."""


@remembered
def steady_targets(look: ProcessLook) -> tuple[WaitTarget, ...]:
    """Return what the main thread waits for now and waited for a sample ago.

    Where it waits for other threads of its process, that is what these wait for. Time limits are
    left out; see `limited`.
    """
    samples = _telling(look)[-2:]
    if len(samples) < 2:
        return ()
    before = {(tid, target.kind, target.name) for tid, target in targets_of(samples[0])}
    steady = {
        (target.call, target.kind, target.name): target
        for tid, target in targets_of(samples[1])
        if (tid, target.kind, target.name) in before
    }
    return tuple(steady.values())


@remembered
def limited(look: ProcessLook) -> bool:
    """Whether the call in which its wait ends does so by itself at a time: a sleep, a retry."""
    return any(_waits_for(state, "time") for state, _ in _ends(look))


def asks_anew(look: ProcessLook) -> bool:
    """Whether it slept between the newest samples until other moments: it asks again and again."""
    kernels = [sample.kernel for sample in _telling(look)[-2:] if sample.kernel is not None]
    states = [kernel.threads[0] for kernel in kernels if kernel.threads]
    return len(states) == 2 and slept_anew(*states)


def sleeps_on(look: ProcessLook) -> bool:
    """Whether its wait ends in one sleep: until the same moment at the newest two samples."""
    moments = [
        {state.tid: state.wakes_ns for state in _at_end(one) if state.wakes_ns is not None}
        for one in _telling(look)[-2:]
    ]
    return len(moments) == 2 and not moments[0].items().isdisjoint(moments[1].items())


@remembered
def in_own_memory(look: ProcessLook) -> bool:
    """Whether its wait ends, without a time limit, at what only the process itself can change.

    That is a word of its memory, or an event loop that waits for nothing but to be woken by its
    own process. What runs no Python yet may do either, see `called_back`.
    """
    return not called_back(look) and any(
        _waits_for(state, "futex") or (stack is not None and wakes_itself(stack, state))
        for state, stack in _ends(look)
    )


def called_back(look: ProcessLook) -> bool:
    """Whether what runs no Python yet may end its main thread's wait, by its newest sample.

    A timer's signal, if it is caught: its handler runs in the main thread. Or a thread of a native
    library that sleeps for a time, and may call the user back after it.
    """
    newest = next((one for one in reversed(look.samples) if one.kernel is not None), None)
    if newest is None or newest.kernel is None:
        return False
    return newest.kernel.catches_timers or _sleeps_natively(newest)


def _sleeps_natively(sample: Sample) -> bool:
    """Whether a thread without a stack of Python's does nothing but sleep.

    Waits of native threads for a word of memory with a time limit are left out: torch's own threads
    stand in such, and look only after their library.
    """
    if sample.stack is None or sample.kernel is None:
        return False
    of_python = {one.tid for one in sample.stack.threads}
    return any(
        state.tid not in of_python
        and any(SLEEP in name for name in (state.wchan, *(one.call for one in state.waits_for)))
        for state in sample.kernel.threads
    )


def _ends(look: ProcessLook) -> Iterator[tuple[ThreadState, ThreadStack | None]]:
    """The threads in which its wait ends now, each with its stack where that was taken."""
    for newest in _telling(look)[-1:]:
        threads = newest.stack.threads if newest.stack is not None else ()
        stacks = {one.tid: one for one in threads}
        for state in _at_end(newest):
            yield state, stacks.get(state.tid)


def _waits_for(state: ThreadState, kind: TargetKind) -> bool:
    return any(target.kind == kind for target in state.waits_for)


def _telling(look: ProcessLook) -> list[Sample]:
    """Samples that tell what it waits for: of a Python process those with its stacks, if any.

    Without them the main thread's own call is all there is, which may be a wait for other threads.
    Found awake, as whoever asks again and again is now and then, it tells nothing either.
    """
    seen = [one for one in look.samples if one.kernel is not None]
    seen = [one for one in seen if one.stack is not None] or seen
    return [one for one in seen if not _awake(one)] or seen


def _awake(sample: Sample) -> bool:
    """Whether a thread in which the main thread's wait ends was ready to run just then."""
    states = sample.kernel.threads if sample.kernel is not None else ()
    ready = any(state.state == "R" for state in states)  # mostly none is: following waits costs
    return ready and any(state.state == "R" for state in _at_end(sample))


def _at_end(sample: Sample) -> list[ThreadState]:
    """Return the kernel's view of the threads in which the main thread's wait ends."""
    states = sample.kernel.threads if sample.kernel is not None else ()
    chain = wait_chain(sample)
    ends = {end.tid for end in chain.ends} if chain is not None else set()
    return [one for one in states if one.tid in ends] if ends else list(states[:1])


def works(look: ProcessLook, holder: Holder) -> bool:
    """Whether a process that holds something up worked between the newest samples."""
    samples = [sample for sample in look.samples if sample.kernel is not None][-2:]
    if len(samples) < 2:
        return False
    seconds = (samples[1].taken_ns - samples[0].taken_ns) / NANOSECONDS
    return any(
        holder.cpu_s - one.cpu_s > WORKING_SHARE * seconds
        or holder.moved_bytes - one.moved_bytes > TRICKLE * seconds
        for _, target in targets_of(samples[0])
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
    if target.kind == "shared":
        return f"in {target.call} at {what}" + (f", shared with {holders}" if holders else "")
    return f"in {target.call} of {what}" + (f", at its other end {holders}" if holders else "")


def awaited_threads(sample: Sample) -> frozenset[int] | None:
    """Return the threads whose work can end the main thread's wait, itself among them.

    Returns:
        None where any thread of the process could: nothing tells what the main thread waits for.
    """
    chain = wait_chain(sample)
    if chain is None or chain.main.tid is None:
        return None
    if chain.leads_on:
        tids = [one.tid for one in chain.threads]
        return None if None in tids else frozenset(tid for tid in tids if tid is not None)
    named = tuple(target for _, target in targets_of(sample))
    from_outside = endless(named) and all(one.kind in OUTSIDE and tells_who(one) for one in named)
    return frozenset({chain.main.tid}) if from_outside else None


def awaited_processes(view: RankView) -> frozenset[int] | None:
    """Return the processes that could end what a rank's own process waits for.

    Those that hold it, and all that these started.

    Returns:
        None where any of its children could: nothing tells what it waits for, or it has both ends
        of a pipe itself.
    """
    own = view.own_process
    targets = steady_targets(own) if own is not None else ()
    holders = {pid for target in targets for pid in pids_here(target)}
    known = bool(targets) and all(one.kind != "other" and tells_who(one) for one in targets)
    if not known or view.pid in holders:
        return None
    parents = {
        look.pid: kernel.parent_pid
        for look in view.processes
        if look.samples and (kernel := look.samples[-1].kernel) is not None
    }
    return frozenset(pid for pid in parents if holders.intersection(_line(pid, parents))) | holders


def pids_here(target: WaitTarget) -> list[int]:
    """Return the processes of the waiter's own host that could end its wait."""
    return [holder.pid for holder in target.holders if not holder.host]


def tells_who(target: WaitTarget) -> bool:
    """Whether it tells who could end the wait: a lock of an unknown maker may be one's own."""
    known = target.kind != "lock" or bool(target.holders) or target.abandoned
    return known and bool(target.name)


def _line(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """A process, its parent, and so on."""
    met: set[int] = set()
    while pid not in met:
        yield pid
        met.add(pid)
        pid = parents.get(pid, pid)


def through_children(
    view: RankView, targets: tuple[WaitTarget, ...]
) -> tuple[ProcessLook | None, tuple[WaitTarget, ...]]:
    """Follow a rank's wait into the child that it waits for, and what that waits for in turn.

    Args:
        view: The rank.
        targets: What its own process waits for.

    Returns:
        The child in which the wait ends, and what that waits for. None and the rank's own where it
        ends in no child, leads back, or to one that serves anybody.
    """
    children = {look.pid: look for look in view.processes if look.role != "rank"}
    pending = [pid for target in targets for pid in pids_here(target)]
    for pid in pending:
        inner = steady_targets(children[pid]) if pid in children else ()
        holders = [one for target in inner for one in pids_here(target)]
        serves = any(one.call.startswith("accept") or not one.name for one in inner)
        if inner and not serves and view.pid not in holders:
            pending += [one for one in holders if one in children and one not in pending]
            if not any(one in children for one in holders):
                return children[pid], inner
    return None, targets


def endless(targets: tuple[WaitTarget, ...]) -> bool:
    """Whether a process waits for one thing, without a time limit of the kernel's."""
    return bool(targets) and not any(target.call in POLLS for target in targets)


def targets_of(sample: Sample) -> tuple[tuple[int, WaitTarget], ...]:
    """Return what the threads wait for on which the main thread's wait rests, each with its thread.

    Futexes are left out: they are words of the process's own memory, and name nobody.
    """
    states = sample.kernel.threads if sample.kernel is not None else ()
    chain = wait_chain(sample)
    if chain is None:
        found = ((one.tid, one.waits_for) for one in states[:1])
        return tuple(
            (tid, one) for tid, targets in found for one in targets if one.kind not in IN_MEMORY
        )
    by_tid = {one.tid: one for one in states}
    return tuple(
        (end.tid, target)
        for end in chain.ends
        if end.tid is not None and end.tid in by_tid
        for target in own_targets(end, by_tid[end.tid])
    )
