"""One process that stands still: what it waits for, in which thread, and whether in vain. Pure.

The newest samples must agree. A wait is for a thread of its own, a word of its memory, or what the
kernel names: a file or its lock, a child, the other end of a pipe or connection, a terminal, a
time.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property, wraps
from typing import TYPE_CHECKING, TypeVar

from lightning_hangcheck.judge.alike import latest_frames
from lightning_hangcheck.judge.frames import Wait, find_wait, of_own_process
from lightning_hangcheck.judge.threads import (
    BUSY_SHARE,
    EVENTS,
    FUTEXES,
    HOUSEKEEPERS,
    THEIR_LIBRARIES,
    Moment,
    Thread,
    awaits_news,
    feeds_queue,
    given_away,
    in_lock,
    joins,
)
from lightning_hangcheck.judge.wording import process_name
from lightning_hangcheck.model.code_owner import is_standard, is_users
from lightning_hangcheck.model.evidence import OF_MAIN_THREADS, ThreadStack
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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

IDLE_SHARE = 0.02
"""Share of a core. The kernel counts in ticks of 10 ms, 0.01 of a second; a page's pulse thread and
a look with py-spy stay below 0.01 together."""
NEWEST = 3
"""Samples that show what a process does now."""
TRICKLE = 1024
"""Bytes a second that a process which others wait for must move to count as working."""
OUTSIDE: frozenset[TargetKind] = frozenset(
    {"lock", "file", "fifo", "terminal", "socket", "process"}
)
"""What no other thread of the process ends; a pipe may have both ends in one process."""
HOW_HELD: dict[TargetKind, tuple[str, str]] = {
    "lock": ("for", "held by"),
    "shared": ("at", "shared with"),
}
SLEEP = "nanosleep"
"""In the names of kernel calls, and of kernel functions, that wait for a time alone."""
READS = frozenset({"read", "readv", "recvfrom", "recvmsg"})
ENDLESS = 1 << 31
"""From this number of milliseconds on, a C int that a poll is given is negative: no time limit."""
POLLS = frozenset({"sleep", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})
"""Calls that may have a time limit, and wait for any of several things."""
SPAWN, PROCESS = "/multiprocessing/spawn.py", "/multiprocessing/process.py"
"""Where a spawned process begins, and where it runs its target, with all that it was given."""
KEPT = 64
"""Newest looks whose answers are kept: ranks in a few situations come one after another."""
Answer = TypeVar("Answer")


def remembered(ask: Callable[[ProcessLook], Answer]) -> Callable[[ProcessLook], Answer]:
    """Cache a pure function's answers for the newest looks, by identity (comparing costs more)."""
    known: OrderedDict[int, tuple[ProcessLook, Answer]] = OrderedDict()

    @wraps(ask)
    def asked(look: ProcessLook) -> Answer:
        found = known.get(id(look))
        if found is not None and found[0] is look:
            return found[1]
        answer = ask(look)
        known[id(look)] = look, answer
        if len(known) > KEPT:
            known.popitem(last=False)
        return answer

    return asked


class ProcessReading:
    """A process by its samples; each answer is worked out once.

    Attributes:
        moments: What each sample shows of its threads, oldest first.
        complete: Moments with both stacks and the kernel's view.
    """

    def __init__(self, look: ProcessLook) -> None:
        self.look = look
        self.moments: list[Moment] = []
        for sample in look.samples:
            before = next((moment for moment in reversed(self.moments) if moment.complete), None)
            self.moments.append(Moment(sample, before))
        self.complete = [moment for moment in self.moments if moment.complete]
        self._seen = [moment for moment in self.moments if moment.kernel is not None]

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """The newest main-thread frames that are its own: a fork inherits its parent's."""
        return of_own_process(latest_frames(self.look))

    @property
    def was_forked(self) -> bool:
        """Whether its stack still has frames of its parent, whose locks it copied."""
        frames = latest_frames(self.look)
        spawned = any(frame.file.endswith(SPAWN) for frame in frames)
        return len(self.frames) < len(frames) and not spawned

    @cached_property
    def wait(self) -> Wait | None:
        """The known wait of its main thread."""
        return find_wait(self.frames)

    @property
    def wants_work(self) -> bool:
        """Whether it is a worker that waits for work: such a worker holds nobody up."""
        return self.wait is not None and self.wait.kind == "index_queue"

    @property
    def serves_library(self) -> bool:
        """Whether it is a helper of multiprocessing (``main``), which owes nothing."""
        return self.wants_work and self.wait is not None and self.wait.name == "main"

    @cached_property
    def _telling(self) -> list[Moment]:
        """Moments with stacks, if any; those in which it was awake to retry tell nothing."""
        seen = self.complete or self._seen
        return [moment for moment in seen if not moment.awake] or seen

    @cached_property
    def targets(self) -> tuple[WaitTarget, ...]:
        """What the threads in which its wait ends wait for, in both newest samples."""
        if len(self._telling) < 2:
            return ()
        before, now = self._telling[-2:]
        known = {(tid, target.kind, target.name) for tid, target in before.targets}
        steady = {
            (target.call, target.kind, target.name): target
            for tid, target in now.targets
            if (tid, target.kind, target.name) in known
        }
        return tuple(steady.values())

    @cached_property
    def _ends(self) -> tuple[Thread, ...]:
        """The threads in which its main thread's wait ends now."""
        return tuple(end for newest in self._telling[-1:] for end in newest.ends)

    @property
    def limited(self) -> bool:
        """Whether the call in which its wait ends has a time limit: a sleep, a retry."""
        return any(end.limited for end in self._ends)

    @property
    def in_foreign_call(self) -> bool:
        """Whether its main thread itself waits in a call that does not tell who could end it."""
        return any(newest.chain and not newest.chain.leads_on for newest in self.complete[-1:])

    @property
    def gives_up(self) -> bool:
        """Whether its wait for something with a name has a time limit: a poll's, a timer, an alarm.

        A sleep between two tries for a lock does not count, but a limit for all tries does. Nor
        does a sleep between two looks for work count. A main thread that waits for its threads may
        leave them alone once its limit is over.
        """
        if any(
            moment.kernel is not None and moment.kernel.catches_alarm for moment in self._seen[-1:]
        ):
            return True
        mains = (moment.threads[0] for moment in self._telling[-1:] if moment.threads)
        waits = (*self._ends, *(main for main in mains if main.for_threads and not main.ticks))
        polls = any(target.limited for target in self.targets)
        return not self.wants_work and any(
            polls or (wait.limited and all(target.kind != "lock" for target in wait.named))
            for wait in waits
        )

    @property
    def polls_for_s(self) -> float:
        """The time limit of the poll that its main thread is in, seconds; 0 for none."""
        mains = (moment.threads[0].state for moment in self._telling[-1:] if moment.threads)
        polls = (
            main.arguments[2]
            for main in mains
            if main is not None and len(main.arguments) > 2
            if any(target.call == "poll" for target in main.waits_for)
        )
        milliseconds = next(polls, 0)
        return milliseconds / 1000 if milliseconds < ENDLESS else 0.0

    @property
    def may_wait_for_device(self) -> bool:
        """Whether its wait may be for a device: in memory or in a driver."""
        elsewhere = {*OUTSIDE, "pipe", "shared"}
        return not self._ends or any(
            not (
                end.for_threads
                or end.sleeps
                or any(target.kind in elsewhere for target in end.targets)
            )
            for end in self._ends
        )

    @property
    def asks_anew(self) -> bool:
        """Whether it slept until different times in the newest samples: it retries."""
        until = {moment.states[0].wakes_ns for moment in self._telling[-2:] if moment.states}
        return len(until) > 1 and None not in until

    def wakes_within(self, seconds: float) -> bool:
        """Whether its main thread sleeps until a known time, and that is so near."""
        return any(
            state.wakes_ns is not None
            and state.wakes_ns - moment.sample.taken_ns <= seconds * NANOSECONDS
            for moment in self._telling[-1:]
            for state in moment.states[:1]
        )

    @property
    def only_sleeps(self) -> bool:
        """Whether its wait ends only in sleeps, each until a time the program set."""
        return bool(self._ends) and all(
            end.targets
            and all(target.kind == "time" and target.call != "futex" for target in end.targets)
            for end in self._ends
        )

    @property
    def sleeps_on(self) -> bool:
        """Whether its wait ends in one sleep, until the same time in both newest samples."""
        until = [
            {(end.tid, end.wakes_ns) for end in moment.ends if end.wakes_ns is not None}
            for moment in self._telling[-2:]
        ]
        return len(until) == 2 and not until[0].isdisjoint(until[1])

    @cached_property
    def heard(self) -> tuple[WaitTarget, ...]:
        """Where libraries' threads listen for what its main thread may wait for as news."""
        newest = next(iter(self._telling[-1:]), None)
        if newest is None or not newest.threads or in_lock(newest.threads[0].stack):
            return ()
        return tuple(
            target
            for thread in newest.helpers
            for target in thread.heard
            if target.kind == "socket" or set(pids_here(target)) - {self.look.pid}
        )

    @cached_property
    def _at_own_memory(self) -> bool:
        if any(target.kind == "socket" for target in self.heard):
            return False
        return any(
            end.words
            or (
                end.looping
                and not end.named
                and [target.kind for target in end.targets] == ["socket"]
            )
            for end in self._ends
        )

    @property
    def in_own_memory(self) -> bool:
        """Whether only the process itself can end its wait, which has no time limit.

        It waits at a word of its memory, or in an event loop that only its own process wakes. Not
        if it may be `called_back`, or if a library's thread listens to the outside.
        """
        return not self.called_back and self._at_own_memory

    @property
    def left_alone(self) -> bool:
        """Whether its main thread waits for news that no thread with Python code may bring."""
        chain = next((newest.chain for newest in self.complete[-1:]), None)
        if chain is None or chain.ends or in_lock(chain.threads[0].stack):
            return False
        return self.in_own_memory and not self.heard

    def in_pythons_lock(self, target: WaitTarget) -> bool:
        """Whether the standard library waits at that shared word, or a line takes a lock.

        A library in C may wait there for a program that nobody knows: a simulator.
        """
        return any(
            thread.stack.takes_lock or is_standard(thread.frames[-1].file)
            for newest in self.complete[-1:]
            for thread in newest.threads
            if thread.frames and any(wait.name == target.name for wait in thread.targets)
        )

    @cached_property
    def called_back(self) -> bool:
        """Whether something that runs no Python yet may end its main thread's wait.

        A caught signal runs a handler. Or a native thread does more than wait for its own process
        (at a word of memory, an eventfd or a pipe of its own), unless it is known to serve only its
        library. Without recorded names only a sleep or a read counts: torch's own threads wait at a
        word of memory until a time, or for any of several connections.
        """

        def by_own_process(target: WaitTarget) -> bool:
            own_pipe = all(holder.pid == self.look.pid for holder in target.holders)
            if target.kind == "pipe":  # also an eventfd that other processes have, too
                return own_pipe
            return target.kind == "futex" or target.name.startswith(EVENTS)

        def may_call_back(native: ThreadState) -> bool:
            if native.state in "ZX" or SLEEP in native.wchan:
                return native.state not in "ZX"
            if not native.name:
                return any(
                    SLEEP in wait.call or (wait.kind == "socket" and wait.call in READS)
                    for wait in native.waits_for
                )
            return not native.waits_for or not all(map(by_own_process, native.waits_for))

        newest = next(iter(self._seen[-1:]), None)
        if newest is None or newest.kernel is None:
            return False
        return newest.kernel.catches_timers or any(
            may_call_back(thread)
            for thread in newest.native_threads
            if not self._keeps_house(thread)
        )

    @cached_property
    def _libraries(self) -> dict[int, str]:
        """The library in which a nameless native thread last waited, by kernel id."""
        states = (state for moment in self._seen for state in moment.states)
        return {state.tid: state.library for state in states if state.library}

    def _keeps_house(self, native: ThreadState) -> bool:
        """Whether a native thread is known to serve its library alone.

        By that library, if a sample shows it, or by its name, unless that is a main thread's, which
        new threads have, too.
        """
        if native.tid in self._libraries:
            return self._libraries[native.tid].startswith(THEIR_LIBRARIES)
        inherited = native.name in (self._seen[-1].states[0].name, *OF_MAIN_THREADS)
        return native.name.startswith(HOUSEKEEPERS) and not inherited

    @property
    def called_by_ranks(self) -> bool:
        """Whether only other ranks may end its wait, by a call of torch's RPC.

        The RPC agent (tensorpipe) has nameless threads, too, that wait for the time limits of
        calls.
        """
        newest = next(iter(self.complete[-1:]), None)
        if newest is None or newest.kernel is None or newest.kernel.catches_timers:
            return False
        native = newest.native_threads
        others = [
            thread
            for thread in native
            if not (thread.name.startswith("TP_") or self._keeps_house(thread))
        ]
        timed = (
            thread.name == newest.states[0].name and thread.syscall in FUTEXES for thread in others
        )
        only_calls = len(others) < len(native) and all(timed)
        return only_calls and self._at_own_memory and not self.limited

    @property
    def serves_calls(self) -> bool:
        """Whether one of its threads runs what another rank called by torch's RPC."""
        return any(
            frame.file.endswith("/torch/distributed/rpc/internal.py")
            for newest in self.complete[-1:]
            for thread in newest.threads
            for frame in thread.frames
        )

    def works(self, holder: Holder) -> bool:
        """Whether a process that it waits for worked between the newest samples."""
        if len(self._seen) < 2:
            return False
        before, now = self._seen[-2:]
        seconds = now.seconds_since(before)
        return any(
            holder.cpu_s - earlier.cpu_s > IDLE_SHARE * seconds
            or holder.moved_bytes - earlier.moved_bytes > TRICKLE * seconds
            for _, target in before.targets
            for earlier in target.holders
            if earlier.pid == holder.pid
        )

    @cached_property
    def stuck(self) -> ThreadStack | None:
        """The thread in which the main thread's wait ends; None if itself or unknown.

        Of several threads: one at something with a name, one that waits for ranks, one that
        computes, one that stands still elsewhere. Periodic threads and idle event loops do not
        count. If none is left to end the wait, the thread that is joined, or that was given the
        work.
        """
        chain = self.complete[-1].chain if len(self.complete) > 1 else None
        if chain is None or not chain.leads_on:
            return None
        earlier, newest = self.complete[-2:]
        main, *rest = chain.threads
        users = [thread for thread in rest if not thread.looping and thread.place is not None]
        given = users[0].stack if users else None
        if given is not None and joins(main.stack) and main.place is None:
            # the interpreter's exit: libraries make their threads daemons, users forget to
            return given
        named, before_named = (
            {(tid, target.kind, target.name) for tid, target in moment.targets if target.name}
            for moment in (newest, earlier)
        )
        at_named = {tid for tid, _, _ in named & before_named}
        shares = newest.shares_since(earlier)
        before = {thread.tid: thread for thread in earlier.threads}

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
        # if the work was given away, whoever has it keeps trying in vain
        last = given if given_away(main.stack) else None
        if main.looping:
            last = next((thread.stack for thread in users if not thread.ticks), None)
        return next((end.stack for sign in signs for end in others if sign(end)), last)

    def in_one_call(self, tid: int | None = None) -> ThreadStack | None:
        """Return a thread that is in one C call, without the interpreter lock, at each look.

        That may be one long computation: it is not seen to go round.
        """
        seen = [
            found.stack
            for moment in self.moments
            if (found := next((it for it in moment.threads if tid is None or it.tid == tid), None))
        ][-NEWEST:]
        still = all(thread.frames == seen[-1].frames and not thread.owns_gil for thread in seen)
        return seen[-1] if len(seen) > 1 and still else None

    @cached_property
    def locked(self) -> tuple[ThreadStack, ...]:
        """Threads in locks in both newest samples, main thread first, if none may release."""
        found = [each for moment in self.complete[-2:] if (each := _locked(moment))]
        if len(found) < 2 or {thread.tid for thread in found[0]} != {
            thread.tid for thread in found[1]
        }:
            return ()
        main = self.complete[-1].threads[0]
        gave_work = main is not found[1][0] and not joins(main.stack)
        sure = len(found[1]) > 1 and not gave_work
        sure = sure or all(each.stack.holds_lock or each.stack.held_by for each in found[1])
        return tuple(thread.stack for thread in found[1]) if sure or self.waits_in_vain else ()

    @cached_property
    def waits_in_vain(self) -> bool:
        """Whether nobody is left to end its wait; both newest samples must show the same.

        Proven if its only thread waits at a word of memory that no other process can change: a fork
        leaves the parent's other threads behind, also one that held a lock. Otherwise the main
        thread must wait for a lock, for the end of threads, for an executor, or for news of a
        thread that waits for its lock; and so, without a time limit, must every thread that could
        end this. One of these may also wait for news (a queue, an event), if the user's own code
        does so and every thread waits likewise: what a library waits for may come by a thread that
        runs no Python. If the process may be `called_back` nothing is proven, except for a lock
        whose holder is known.
        """
        seen = self._seen[-2:]
        if self.called_back:
            through = [moment.chain.threads if moment.chain is not None else () for moment in seen]
            known = (thread.stack for threads in through for thread in threads)
            held = (thread.holds_lock or thread.held_by is not None for thread in known)
            if not all(through) or not all(held):
                return False
        circles = [_circle(moment) for moment in seen]
        return len(circles) == 2 and circles[0] is not None and circles[0] == circles[1]

    @cached_property
    def free_threads(self) -> tuple[Thread, ...]:
        """The threads that may act whatever the main thread waits for, by the newest sample.

        No circle through such a process is closed. Idle and periodic threads of libraries do not
        count, of which nearly every process has some; nor threads that wait without a time limit
        for their own process, unless for ranks, or for a library that may call them back.
        """
        return tuple(
            thread
            for newest in self.complete[-1:]
            for chain in [newest.chain.threads if newest.chain is not None else ()]
            for along in [{thread.tid for thread in chain}]
            for thread in newest.helpers
            if thread.state is not None
            and thread.tid not in along
            and thread.acts
            and (
                {target.kind for target in thread.targets} != {"futex"}
                or thread.for_ranks
                or (thread.place is not None and awaits_news(thread.stack) and self.called_back)
            )
        )

    def late_callers(self) -> Iterator[tuple[Thread, list[Thread]]]:
        """Yield threads that may still call what ranks wait for, with where their waits end.

        For example an asynchronous save, or a helper that first waits for a child, a queue or a
        sleep. They run the user's code, or that of a library that trains. Also threads of an
        installed package, if its source calls collectives. No stack shows what an event loop runs
        next.
        """
        for newest in self.complete[-1:]:
            for thread in newest.helpers:
                acts = thread.may_train or thread.packages or thread.runs_any or thread.timed
                if acts:
                    ends = newest.follow(thread).ends
                    yield thread, [each for each in ends if each.state is not None]


read_process = remembered(ProcessReading)
"""Reads a process, or returns an earlier reading of it."""


def _locked(moment: Moment) -> tuple[Thread, ...]:
    """Threads in locks; none unless the main thread is in one, has one, or waits for such a thread.

    None either if the lock's owner does something else. If nobody is left to end the main thread's
    wait, only threads of that wait.
    """
    locked = tuple(thread for thread in moment.threads if thread.words and in_lock(thread.stack))
    if not locked or not (locked[0] is moment.threads[0] or _gave(moment.threads[0], locked)):
        return ()
    if moment.chain is not None and not moment.chain.ends:
        return tuple(thread for thread in locked if thread in moment.chain.threads)
    by_tid = {thread.tid: thread for thread in moment.threads}
    holders = [locked[0]]  # who holds its lock, who holds the lock that thread takes, and so on
    while (holder := by_tid.get(holders[-1].stack.held_by or 0)) and holder not in holders:
        holders.append(holder)
    return locked if holders[-1] in locked else ()


def _gave(main: Thread, others: Sequence[Thread]) -> bool:
    """Whether the main thread waits for work it gave to others, or holds a lock they need."""
    return given_away(main.stack) or any(thread.stack.held_by == main.tid for thread in others)


def _circle(moment: Moment) -> set[Standing] | None:
    """Return where the threads stand if none is left to end the main one's wait; else None."""
    left_out = moment.kernel.threads_left_out if moment.kernel is not None else 0
    if len(moment.states) == 1 and not left_out:
        alone = Thread(ThreadStack(tid=moment.states[0].tid), moment.states[0])
        return {(alone.tid, (), alone.words)} if alone.words else None
    chain = moment.chain
    if chain is None or chain.ends or not all(thread.words for thread in chain.threads):
        return None
    main, *others = chain.threads
    if not (in_lock(main.stack) or (others and _gave(main, others))):
        return None
    all_wait = all(thread.words for thread in moment.helpers if not thread.stack.bystander)
    for thread in others:  # those that wait for a notification
        if not (in_lock(thread.stack) or given_away(thread.stack)):
            calls = (frame for frame in reversed(thread.frames) if not is_standard(frame.file))
            calling = next(calls, None)
            if not all_wait or calling is None or not is_users(calling.file):
                return None
    named = (thread for thread in chain.threads if thread.tid is not None)
    return {(thread.tid, thread.frames, thread.words) for thread in named}


# What a process waits for, and which processes could end that.


def in_words(target: WaitTarget) -> str:
    """Say what a system call waits for: ``in flock for /data/a.lock, held by pid 7 (python)``."""
    holders = ", ".join(map(process_name, target.holders))
    what = target.name or f"a {target.kind}"
    if target.kind == "process":
        return f"in {target.call} for {holders or f'pid {what}'}"
    word, held = HOW_HELD.get(target.kind, ("of", "at its other end"))
    return f"in {target.call} {word} {what}" + (f", {held} {holders}" if holders else "")


def pids_here(target: WaitTarget) -> list[int]:
    """Return the processes on the waiter's host that could end its wait."""
    return [holder.pid for holder in target.holders if not holder.host]


def shows_who(target: WaitTarget) -> bool:
    """Whether a target tells who could end the wait; a lock of unknown maker may be its own.

    A semaphore that nobody else has may be on its way to a child that was just started.
    """
    known = target.kind not in ("lock", "shared") or bool(target.holders) or target.abandoned
    return known and bool(target.name)


def endless(targets: Sequence[WaitTarget]) -> bool:
    """Whether a process waits for one thing, without a time limit in the kernel."""
    return bool(targets) and not any(target.call in POLLS for target in targets)


def awaited_threads(moment: Moment) -> frozenset[int] | None:
    """The threads whose work can end the main thread's wait, itself included; None: any."""
    chain = moment.chain
    if chain is None:
        return None
    tids = frozenset(thread.tid for thread in chain.threads if thread.tid is not None)
    named = [target for _, target in moment.targets]
    from_outside = endless(named) and all(
        target.kind in OUTSIDE and shows_who(target) for target in named
    )
    known = all(thread.tid is not None for thread in chain.threads)
    return tids if known and (chain.leads_on or from_outside) else None


def awaited_processes(view: RankView) -> frozenset[int] | None:
    """Return the processes that could end a rank's wait; None if any process could.

    Those that hold the awaited thing, and all that these started. Every child has a copy of a pipe:
    if a thread of some children is at it or feeds queues, the other children work for themselves.
    Memory that no other process has mapped yet may be mapped by one that is being started.
    """
    own = view.own_process
    targets = read_process(own).targets if own is not None else ()
    newest = {look.pid: read_process(look).complete[-1:] for look in view.processes}

    def uses(pid: int, target: WaitTarget) -> bool:
        return target.kind == "pipe" and any(
            any(map(feeds_queue, thread.frames))
            or any(wait.name == target.name for wait in thread.targets)
            for moment in newest.get(pid, ())
            for thread in moment.threads
        )

    found: set[int] = set()
    for target in targets:
        holders = pids_here(target)
        if target.kind == "shared" and not target.holders:
            holders = [look.pid for look in view.processes if is_being_started(look)]
        found.update([pid for pid in holders if uses(pid, target)] or holders)
    known = bool(targets) and all(
        target.kind != "other" and shows_who(target) for target in targets
    )
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


def is_being_started(look: ProcessLook) -> bool:
    """Whether a process has not yet received its locks, events and queues.

    A spawned process first imports the main module again, which may take long. A fork has all from
    the beginning; a process that runs its target has received all.
    """
    frames = latest_frames(look)
    spawned = not frames or any(frame.file.endswith(SPAWN) for frame in frames)
    runs = any(frame.file.endswith(PROCESS) for frame in frames)
    gone = any(each.kernel is not None and each.kernel.state in "ZX" for each in look.samples[-1:])
    return look.role == "worker" and spawned and not runs and not gone


def through_children(
    view: RankView, targets: tuple[WaitTarget, ...]
) -> tuple[ProcessLook | None, tuple[WaitTarget, ...]]:
    """Return the child in which a rank's wait ends, and what that child waits for.

    None and the rank's own targets if the wait ends in no child, leads to a server, or leads back
    by anything but a file's lock.
    """
    children = {look.pid: look for look in view.processes if look.role != "rank"}
    pending = [pid for target in targets for pid in pids_here(target)]
    for pid in pending:
        inner = read_process(children[pid]).targets if pid in children else ()
        holders = [awaited for target in inner for awaited in pids_here(target)]
        serves = any(target.call.startswith("accept") or not target.name for target in inner)
        locked = {target.kind for target in inner} == {"lock"}
        if inner and not serves and (locked or view.pid not in holders):
            pending += [
                holder for holder in holders if holder in children and holder not in pending
            ]
            if not any(holder in children for holder in holders):
                return children[pid], inner
    return None, targets
