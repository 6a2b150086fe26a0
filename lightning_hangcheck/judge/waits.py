"""What a process that stands still waits for: the same in its newest samples. Pure.

A thread of its own, a word of its memory, or what the kernel names: a file or the lock on one, a
child, the other end of a pipe or connection, a terminal, a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge.threads import (
    EVENTS,
    FUTEXES,
    Thread,
    complete,
    given_away,
    in_lock,
    joins,
    moments,
    remembered,
)
from lightning_hangcheck.judge.wording import process_name
from lightning_hangcheck.model.code_owner import is_standard, is_users
from lightning_hangcheck.model.evidence import ThreadStack
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.judge.threads import Moment
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import (
        Frame,
        Holder,
        ProcessLook,
        TargetKind,
        ThreadState,
        WaitTarget,
    )

    Standing = tuple[int | None, tuple[Frame, ...], tuple[str, ...]]

BUSY_SHARE = 0.20
IDLE_SHARE = 0.02
"""Shares of one core. The kernel counts in ticks of 10 ms, 0.01 of a second; a page's pulse thread
and a look with py-spy stay below 0.01 together."""
NEWEST = 3
"""Samples that tell what a process does now."""
STARVED_SHARE = 0.5
"""Of its time, which a thread that computes on a crowded machine spends in the queue for a
processor; one that storage wakes is in it for moments."""
STALE_S = 2.0
"""The pulse thread runs every 0.5 s; four times that shows that it cannot."""
TRICKLE = 1024
"""Bytes a second that such a process must read or write to count as working."""
OUTSIDE: frozenset[TargetKind] = frozenset(
    {"lock", "file", "fifo", "terminal", "socket", "process"}
)
"""What no other thread of the process ends: a pipe may have both its ends in one process."""
HOW_HELD: dict[TargetKind, tuple[str, str]] = {
    "lock": ("for", "held by"),
    "shared": ("at", "shared with"),
}
SLEEP = "nanosleep"
"""In the names of the kernel's calls that wait for a time alone, and of its functions for them."""
READS = frozenset({"read", "readv", "recvfrom", "recvmsg"})
HOUSEKEEPERS = ("pt_", "gloo_", "NCCL", "cuda", "iou-", "jemalloc")
"""Beginnings of the kernel's names of native threads that call no user back: those of torch, its
backends, the GPU's driver, the kernel itself and memory allocators."""
POLLS = frozenset({"sleep", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})
"""Calls that may have a time limit, and wait for any of several things."""


def _telling(look: ProcessLook) -> list[Moment]:
    """Moments that tell what it waits for: of a Python process those with its stacks, if any.

    Without them the main thread's own call is all there is, which may be a wait for other threads.
    Found awake, as whoever asks again and again is now and then, it tells nothing either.
    """
    seen = complete(look) or [one for one in moments(look) if one.kernel is not None]
    return [one for one in seen if not one.awake] or seen


@remembered
def steady_targets(look: ProcessLook) -> tuple[WaitTarget, ...]:
    """Return what the main thread waits for now and waited for a sample ago.

    Where it waits for other threads of its process, that is what these wait for. Time limits are
    left out; see `limited`.
    """
    newest = _telling(look)[-2:]
    known = {(tid, one.kind, one.name) for tid, one in newest[0].targets} if newest[1:] else set()
    steady = {
        (target.call, target.kind, target.name): target
        for moment in newest[1:]
        for tid, target in moment.targets
        if (tid, target.kind, target.name) in known
    }
    return tuple(steady.values())


def _ends(look: ProcessLook) -> tuple[Thread, ...]:
    """The threads in which its main thread's wait ends now."""
    return tuple(end for newest in _telling(look)[-1:] for end in newest.ends)


def limited(look: ProcessLook) -> bool:
    """Whether the call in which its wait ends does so by itself at a time: a sleep, a retry."""
    return any(end.limited for end in _ends(look))


def may_wait_for_device(look: ProcessLook) -> bool:
    """Whether its wait may end in one for a device: a thread sleeps in memory, or in the driver.

    None does where other threads owe its end, or a file, a connection, a child, or one long sleep.
    """
    elsewhere = {*OUTSIDE, "pipe", "shared"}
    return not (ends := _ends(look)) or any(
        not (end.for_threads or end.sleeps or any(one.kind in elsewhere for one in end.targets))
        for end in ends
    )


def asks_anew(look: ProcessLook) -> bool:
    """Whether it slept between the newest samples until other moments: it asks again and again."""
    until = {one.states[0].wakes_ns for one in _telling(look)[-2:] if one.states}
    return len(until) > 1 and None not in until


def only_sleeps(look: ProcessLook) -> bool:
    """Whether its wait ends in nothing but sleeps, each until a time that the program set."""
    ends = _ends(look)
    return bool(ends) and all(
        end.targets and all(one.kind == "time" and one.call != "futex" for one in end.targets)
        for end in ends
    )


def sleeps_on(look: ProcessLook) -> bool:
    """Whether its wait ends in one sleep: until the same moment at the newest two samples."""
    until = [
        {(end.tid, end.wakes_ns) for end in one.ends if end.wakes_ns is not None}
        for one in _telling(look)[-2:]
    ]
    return len(until) == 2 and not until[0].isdisjoint(until[1])


@remembered
def in_own_memory(look: ProcessLook) -> bool:
    """Whether its wait ends, without a time limit, at what only the process itself can change.

    That is a word of its memory, or an event loop that waits for nothing but to be woken by its
    own process. What is `called_back` may do either, and so may a library's thread that hears from
    outside, unless what is waited for is a lock.
    """
    return not called_back(look) and _at_own_memory(look)


def _at_own_memory(look: ProcessLook) -> bool:
    for newest in _telling(look)[-1:]:
        for_news = bool(newest.threads) and not in_lock(newest.threads[0].stack)
        if for_news and any(one.hears_from_outside for one in newest.helpers):
            return False
    return any(
        end.words
        or (end.looping and not end.named and [one.kind for one in end.targets] == ["socket"])
        for end in _ends(look)
    )


def in_pythons_lock(look: ProcessLook, target: WaitTarget) -> bool:
    """Whether the interpreter's library waits for a word of shared memory, or a line takes a lock.

    What a library in C waits for there, a program that nobody knows may bring: a simulator.
    """
    return any(
        thread.stack.takes_lock or is_standard(thread.frames[-1].file)
        for newest in complete(look)[-1:]
        for thread in newest.threads
        if thread.frames and any(one.name == target.name for one in thread.targets)
    )


def called_back(look: ProcessLook) -> bool:
    """Whether what runs no Python yet may end its main thread's wait, by its newest sample.

    A signal, if it is caught: its handler runs in the main thread. Or a thread of a native library
    that does anything but wait for its own process, unless it is known to look only after its
    library. Its own process wakes it by a word of memory, an eventfd or a pipe of which nobody else
    has an end. Where its name was not recorded, only a sleep or a read counts: torch's threads wait
    for a word of memory until a time, or for any of several connections.
    """

    def by_own_process(target: WaitTarget) -> bool:
        own_pipe = target.kind == "pipe" and all(one.pid == look.pid for one in target.holders)
        return target.kind == "futex" or own_pipe or target.name.startswith(EVENTS)

    def may_call_back(native: ThreadState) -> bool:
        if native.state in "ZX" or SLEEP in native.wchan:
            return native.state not in "ZX"
        if not native.name:
            return any(
                SLEEP in one.call or (one.kind == "socket" and one.call in READS)
                for one in native.waits_for
            )
        return not native.waits_for or not all(map(by_own_process, native.waits_for))

    newest = next((one for one in reversed(moments(look)) if one.kernel is not None), None)
    if newest is None or newest.kernel is None:
        return False
    # one that nobody named has the name of who started it, mostly the main thread
    return newest.kernel.catches_timers or any(
        may_call_back(one)
        for one in _native_threads(newest)
        if not one.name.startswith(HOUSEKEEPERS) or one.name == newest.states[0].name
    )


def called_by_ranks(look: ProcessLook) -> bool:
    """Whether only other ranks may end its wait, at its own memory, by a call through torch's RPC.

    The agent (tensorpipe) has threads without a name, too, that wait for the time limits of calls.
    """
    newest = next(iter(complete(look)[-1:]), None)
    if newest is None or newest.kernel is None or newest.kernel.catches_timers:
        return False
    native = _native_threads(newest)
    beside = [one for one in native if not one.name.startswith((*HOUSEKEEPERS, "TP_"))]
    timed = (one.name == newest.states[0].name and one.syscall in FUTEXES for one in beside)
    only_calls = len(beside) < len(native) and all(timed)
    return only_calls and _at_own_memory(look) and not limited(look)


def _native_threads(newest: Moment) -> list[ThreadState]:
    of_python = {one.tid for one in newest.threads}
    known = newest.complete or not of_python  # a native program's threads are all its own
    return [one for one in newest.states[1:] if known and one.tid not in of_python]


def works(look: ProcessLook, holder: Holder) -> bool:
    """Whether a process that holds something up worked between the newest samples."""
    seen = [one for one in moments(look) if one.kernel is not None][-2:]
    if len(seen) < 2:
        return False
    seconds = seen[1].seconds_since(seen[0])
    return any(
        holder.cpu_s - one.cpu_s > IDLE_SHARE * seconds
        or holder.moved_bytes - one.moved_bytes > TRICKLE * seconds
        for _, target in seen[0].targets
        for one in target.holders
        if one.pid == holder.pid
    )


def in_words(target: WaitTarget) -> str:
    """Say what a system call waits for: ``in flock for /data/a.lock, held by pid 7 (python)``."""
    holders = ", ".join(map(process_name, target.holders))
    what = target.name or f"a {target.kind}"
    if target.kind == "process":
        return f"in {target.call} for {holders or f'pid {what}'}"
    word, held = HOW_HELD.get(target.kind, ("of", "at its other end"))
    return f"in {target.call} {word} {what}" + (f", {held} {holders}" if holders else "")


def awaited_threads(moment: Moment) -> frozenset[int] | None:
    """Return the threads whose work can end the main thread's wait, itself among them.

    None where any thread of the process could: nothing tells what the main thread waits for.
    """
    chain = moment.chain
    if chain is None:
        return None
    tids = frozenset(one.tid for one in chain.threads if one.tid is not None)
    named = tuple(target for _, target in moment.targets)
    from_outside = endless(named) and all(one.kind in OUTSIDE and tells_who(one) for one in named)
    known = all(one.tid is not None for one in chain.threads)
    return tids if known and (chain.leads_on or from_outside) else None


def awaited_processes(view: RankView) -> frozenset[int] | None:
    """Return the processes that could end what a rank's own process waits for.

    Those that hold it, and all that these started. Of a pipe every child has a copy: where a thread
    of some is seen at it, or feeds queues, the others work for themselves. None where any of its
    children could: nothing tells what it waits for, or it has both ends of a pipe itself.
    """
    own = view.own_process
    targets = steady_targets(own) if own is not None else ()
    newest = {look.pid: complete(look)[-1:] for look in view.processes}

    def uses(pid: int, target: WaitTarget) -> bool:
        return target.kind == "pipe" and any(
            thread.feeds_queue or any(one.name == target.name for one in thread.targets)
            for moment in newest.get(pid, ())
            for thread in moment.threads
        )

    found: set[int] = set()
    for target in targets:
        holders = pids_here(target)
        found.update([pid for pid in holders if uses(pid, target)] or holders)
    known = bool(targets) and all(one.kind != "other" and tells_who(one) for one in targets)
    if not known or view.pid in found:
        return None
    parents = {
        look.pid: kernel.parent_pid
        for look in view.processes
        if look.samples and (kernel := look.samples[-1].kernel) is not None
    }
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return frozenset(found)


def pids_here(target: WaitTarget) -> list[int]:
    """Return the processes of the waiter's own host that could end its wait."""
    return [holder.pid for holder in target.holders if not holder.host]


def tells_who(target: WaitTarget) -> bool:
    """Whether it tells who could end the wait: a lock of an unknown maker may be one's own."""
    known = target.kind != "lock" or bool(target.holders) or target.abandoned
    return known and bool(target.name)


def endless(targets: tuple[WaitTarget, ...]) -> bool:
    """Whether a process waits for one thing, without a time limit of the kernel's."""
    return bool(targets) and not any(target.call in POLLS for target in targets)


def through_children(
    view: RankView, targets: tuple[WaitTarget, ...]
) -> tuple[ProcessLook | None, tuple[WaitTarget, ...]]:
    """Return the child in which a rank's wait ends, and what that waits for.

    None and the rank's own where it ends in no child, leads back, or to one that serves anybody.
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


def stuck_thread(look: ProcessLook) -> ThreadStack | None:
    """Return the thread in which the main thread's wait ends; None for itself, or nothing tells.

    Of several, one that waits for something that has a name, then one that waits for other ranks,
    one that computes, and one that stands still elsewhere; not one that sleeps a moment at a time,
    nor an event loop without anything to do. Where none is left to end the wait, the one that is
    joined, or that the work was given to.
    """
    seen = complete(look)[-2:]
    chain = seen[-1].chain if len(seen) == 2 else None
    if chain is None or not chain.leads_on:
        return None
    earlier, newest = seen
    main, *beside = chain.threads
    users = [one for one in beside if not one.looping and one.place is not None]
    given = users[0].stack if users else None
    if given is not None and joins(main.stack) and main.place is None:
        # the interpreter's exit: libraries make their threads daemons, users forget it
        return given
    named, before_named = (
        {(tid, one.kind, one.name) for tid, one in moment.targets if one.name}
        for moment in (newest, earlier)
    )
    at_named = {tid for tid, _, _ in named & before_named}
    shares, before = newest.shares_since(earlier), {one.tid: one for one in earlier.threads}

    def stands_still(end: Thread) -> bool:
        old = before.get(end.tid)
        same = old is not None and (old.frames, old.wakes_ns) == (end.frames, end.wakes_ns)
        return same and not end.looping

    signs: tuple[Callable[[Thread], bool], ...] = (
        lambda end: end.tid in at_named,
        lambda end: end.for_ranks,
        lambda end: shares.get(end.tid or 0, 0.0) >= BUSY_SHARE,
        stands_still,
    )
    others = [end for end in chain.ends if end is not main and end.tid is not None]
    # where the work was given away, whoever has it goes on trying in vain
    last = given if given_away(main.stack) else None
    if main.looping:
        last = next((one.stack for one in users if not one.ticks), None)
    return next((end.stack for sign in signs for end in others if sign(end)), last)


def lock_keeper(look: ProcessLook, beat: Beat | None) -> ThreadStack | None:
    """Return the thread that keeps the interpreter lock, the main one included.

    A thread in Python code gives it up when another asks; one in a C call may not, and then the
    page's pulse stands still. Without a page, a thread that has it twice while it sleeps keeps it.
    One that only gets no processor would go on, and whether it gave the lock up then nobody knows.
    """
    seen = complete(look)[-2:]
    owners = [[one.stack for one in moment.threads if one.stack.owns_gil][:1] for moment in seen]
    if len(seen) < 2 or not owners[1] or is_starved(*seen):
        return None
    (keeper,), before = owners[1], owners[0]
    if beat is not None and beat.pulse_ns > 0:
        stale = seen[1].sample.taken_ns - beat.pulse_ns > STALE_S * NANOSECONDS
        return keeper if stale else None
    same = [(one.tid, one.frames) for one in before] == [(keeper.tid, keeper.frames)]
    computes = seen[1].shares_since(seen[0]).get(keeper.tid or 0, 0.0) >= BUSY_SHARE
    return keeper if same and not computes else None


def in_one_call(look: ProcessLook, tid: int | None = None) -> ThreadStack | None:
    """Return a thread if it stands in one C call without the interpreter lock, look after look.

    That may be one long computation: it does not go round, as far as anybody can see.
    """
    seen = [
        found.stack
        for one in moments(look)
        if (found := next((it for it in one.threads if tid is None or it.tid == tid), None))
    ][-NEWEST:]
    still = all(one.frames == seen[-1].frames and not one.owns_gil for one in seen)
    return seen[-1] if len(seen) > 1 and still else None


def is_starved(before: Moment, now: Moment) -> bool:
    """Whether the main thread had work to do, but others had the processor."""
    queued = [one.queued_s for one in (*before.states[:1], *now.states[:1])]
    if len(queued) < 2 or queued[0] is None or queued[1] is None:
        return False
    return queued[1] - queued[0] > STARVED_SHARE * now.seconds_since(before)


@remembered
def read_locks(look: ProcessLook) -> tuple[ThreadStack, ...]:
    """Tell which threads of a process stand in locks, the main one first, by two newest samples.

    None where the main one is in no lock and waits for no thread that is, or another may release
    its lock.
    """
    seen = complete(look)[-2:]
    found = [locked for one in seen if (locked := _locked(one))]
    if len(found) < 2 or {one.tid for one in found[0]} != {one.tid for one in found[1]}:
        return ()
    main = seen[1].threads[0]
    gave_work = main is not found[1][0] and not joins(main.stack)
    sure = len(found[1]) > 1 and not gave_work
    return tuple(one.stack for one in found[1]) if sure or waits_in_vain(look) else ()


def _locked(moment: Moment) -> tuple[Thread, ...]:
    """Threads in locks; none where the main thread is in none, has none, and waits for no thread.

    Nor where it is known who has the lock, and that this thread does something else. Where nobody
    is left to end the main one's wait, only those through which it leads.
    """
    locked = tuple(one for one in moment.threads if one.words and in_lock(one.stack))
    if not locked or not (locked[0] is moment.threads[0] or _gave(moment.threads[0], locked)):
        return ()
    if moment.chain is not None and not moment.chain.ends:
        return tuple(one for one in locked if one in moment.chain.threads)
    by_tid = {one.tid: one for one in moment.threads}
    holders = [locked[0]]  # who has its lock, who has the lock that this one takes, and so on
    while (holder := by_tid.get(holders[-1].stack.held_by or 0)) and holder not in holders:
        holders.append(holder)
    return locked if holders[-1] in locked else ()


@remembered
def waits_in_vain(look: ProcessLook) -> bool:
    """Whether nobody is left to end a process's wait, and its two newest samples show the same.

    That is proven where its only thread waits for a word of memory that no other process can
    change: a fork leaves all other threads of the parent behind, also one that held a lock. Else
    the main thread must wait for a lock, for the end of threads or for an executor, or for news of
    one that waits for its lock, and so, without a time limit, must every thread that could end
    this. One of these may also wait for news (a queue, an event), where the user's own code does so
    and every thread waits likewise: what a library waits for may come by a thread that runs no
    Python. What may be `called_back` proves nothing, but it gives back no lock whose holder is
    known.
    """
    seen = [one for one in moments(look) if one.kernel is not None][-2:]
    if called_back(look):
        through = [one.chain.threads if one.chain is not None else () for one in seen]
        known = (one.stack for threads in through for one in threads)
        if not all(through) or not all(one.holds_lock or one.held_by is not None for one in known):
            return False
    circles = [_circle(one) for one in seen]
    return len(circles) == 2 and circles[0] is not None and circles[0] == circles[1]


def _gave(main: Thread, others: Sequence[Thread]) -> bool:
    """Whether the main thread waits for what it gave to others, or keeps one from a lock."""
    return given_away(main.stack) or any(one.stack.held_by == main.tid for one in others)


def _circle(moment: Moment) -> set[Standing] | None:
    """Return where the threads stand of which none is left to end the main one's wait."""
    left_out = moment.kernel.threads_left_out if moment.kernel is not None else 0
    if len(moment.states) == 1 and not left_out:
        alone = Thread(ThreadStack(tid=moment.states[0].tid), moment.states[0])
        return {(alone.tid, (), alone.words)} if alone.words else None
    chain = moment.chain
    if chain is None or chain.ends or not all(one.words for one in chain.threads):
        return None
    main, *others = chain.threads
    if not (in_lock(main.stack) or (others and _gave(main, others))):
        return None
    beside = (one for one in moment.helpers if not one.stack.bystander)
    all_wait = all(one.words for one in (main, *beside))
    for one in others:  # for news
        if not (in_lock(one.stack) or given_away(one.stack)):
            calls = (frame for frame in reversed(one.frames) if not is_standard(frame.file))
            calling = next(calls, None)
            if not all_wait or calling is None or not is_users(calling.file):
                return None
    return {(one.tid, one.frames, one.words) for one in chain.threads if one.tid is not None}
