"""The threads of a process: what each waits for, who could end that, where the wait ends. Pure.

A thread in a lock, event, queue, future, join or event loop waits for other threads of its process,
because the memory that it waits on is nobody else's. So the wait leads on to the threads that could
end it, and from there to their file, socket, child or collective. No table of functions says which
waits these are: the kernel shows a futex, and the innermost frame is the standard library, or its
line takes a lock. Also told here: which thread keeps the interpreter lock.
"""

from __future__ import annotations

from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.judge.frames import (
    ENTRIES,
    bare_name,
    find_wait,
    functions_in,
    holds,
    rules_of,
    users_place,
    waits_for_ranks,
)
from lightning_hangcheck.model.code_owner import (
    RUNNERS,
    TRAINING,
    is_ours,
    is_standard,
    owner_of,
    program_of,
)
from lightning_hangcheck.model.evidence import Frame, ThreadStack
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.code_owner import Owner
    from lightning_hangcheck.model.evidence import Sample, TargetKind, ThreadState, WaitTarget

STARTS_NATIVE_LOOP = ("/asyncio/runners.py", "/uvloop/__init__.py")
"""Where a stack ends while a loop outside of Python code waits (uvloop 0.22): Python's own loop has
frames below."""
HOUSEKEEPERS = ("pt_", "gloo_", "NCCL", "cuda", "iou-", "jemalloc")
"""How the kernel's names of native threads begin that call no user back: those of torch, its
backends, the GPU's driver, the kernel itself and memory allocators."""
THEIR_LIBRARIES = (
    *("libtorch_c", "libtorch_hip", "libtorch.", "libc10", "libnccl", "librccl", "libcuda"),
    *("libnvidia", "libcublas", "libcudnn", "libgomp", "libiomp", "libomp", "libmkl"),
    *("libopenblas", "libscipy_openblas", "libjemalloc", "libtcmalloc", "libuv"),
)
"""How the names of the libraries begin in which nameless threads of this kind wait. libtorch_python
is none: it may call anybody."""
FUTEXES = frozenset({202, 98, 449, 455})
"""futex on x86-64 and arm64, then futex_waitv and futex_wait (arch/*/syscall*.tbl)."""
IN_MEMORY: frozenset[TargetKind] = frozenset({"futex", "time"})
"""Waits that name nobody: for a word of the process's own memory, and for a time."""
WRITES = frozenset({"write", "writev", "pwrite64", "sendto", "sendmsg"})
OWN_BUSINESS = RUNNERS | {
    *("aim", "clearml", "comet_ml", "ddtrace", "mlflow", "neptune", "opentelemetry"),
    *("sentry_sdk", "swanlab", "tensorboard", "tensorboardX", "wandb"),
}
"""Packages whose threads at connections serve them alone: no user code waits for a call."""
EVENTS = ("eventfd:[", "anon_inode:[eventfd]", "anon_inode:[timerfd]")
"""What wakes the loop of a C++ library, as calls wake the loop of a Ray actor."""
TAKE_LOCKS = ("acquire", "__enter__", "_acquire_restore")
"""Functions of the interpreter's library in which a thread waits for a lock. All others that take a
lock there (``Condition.wait``, ``join``) wait for a notification, or for a thread's end."""
BUSY_SHARE = 0.20
"""Share of a core from which a thread counts as busy."""
STALE_S = 2.0
"""The pulse thread runs every 0.5 s; after four times that it cannot run."""
STARVED_SHARE = 0.5
"""Share of its time that a computing thread on a crowded machine waits for a processor; a thread
that storage wakes waits only for moments."""
FAMILIES = (("/concurrent/futures/", "/asyncio/"), ("/multiprocessing/",))
"""Parts of the interpreter's library in which threads wait for work that they gave away, and others
do such work: pools, executors and event loops run what others wait for."""


class Thread:
    """A thread at one moment: its calls, and the kernel's view if known.

    Args:
        stack: Its calls; empty for a thread that runs no Python.
        state: The kernel's view.
        before: The same thread in the previous complete moment.
        program: See `program_of`.
    """

    def __init__(
        self,
        stack: ThreadStack,
        state: ThreadState | None,
        before: Thread | None = None,
        program: str = "",
    ) -> None:
        self.stack = stack
        self.state = state
        self.frames = stack.frames
        self.tid = stack.tid
        self.targets = state.waits_for if state is not None else ()
        self.wakes_ns = state.wakes_ns if state is not None else None
        self._before = before
        self._program = program

    @cached_property
    def place(self) -> Frame | None:
        """The innermost line of the user's own code."""
        return users_place(self.frames, self._program)

    @cached_property
    def for_ranks(self) -> bool:
        """Whether it is in a wait that only other ranks could end."""
        return waits_for_ranks(self.frames)

    @cached_property
    def looping(self) -> bool:
        """Whether it is in an event loop that waits for something to do."""
        return in_event_loop(self.frames)

    @cached_property
    def pythons_loop(self) -> bool:
        """Whether that loop is Python's own: it may run anybody's coroutine."""
        return self.looping and all(is_standard(frame.file) for frame in self.frames)

    @property
    def runs(self) -> bool:
        """Whether it was running or ready to run."""
        return self.state is not None and self.state.state == "R"

    @property
    def limited(self) -> bool:
        """Whether its wait has a time limit."""
        return any(target.kind == "time" for target in self.targets)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of its process's memory at which it waits without a time limit."""
        return tuple(target.name for target in self.targets if target.kind == "futex")

    @cached_property
    def named(self) -> tuple[WaitTarget, ...]:
        """What it waits for outside its memory, without the socket that wakes its loop."""
        outside = [target for target in self.targets if target.kind not in IN_MEMORY]
        wakers = [target for target in outside if target.kind == "socket" and not target.name]
        if self.looping and wakers:
            outside.remove(wakers[0])
        return tuple(outside)

    @cached_property
    def for_threads(self) -> bool:
        """Whether, as far as is shown, only threads of its process could end its wait."""
        if self.state is None or not self.frames or self.for_ranks:
            return False
        in_library = self.stack.takes_lock or is_standard(self.frames[-1].file)
        in_futex = self.state.state == "S" and self.state.syscall in FUTEXES
        return self.looping or (in_library and in_futex)

    @cached_property
    def ticks(self) -> bool:
        """Whether it woke and slept again at the same place, and so ended nobody's wait."""
        before = self._before
        if before is None or None in (before.wakes_ns, self.wakes_ns):
            return False
        return before.wakes_ns != self.wakes_ns and before.place == self.place

    @property
    def came_round(self) -> bool:
        """Whether it was at another line before, so that it is not in one long call."""
        before = self._before
        return before is not None and (before.frames != self.frames or before.came_round)

    @cached_property
    def timer(self) -> bool:
        """Whether it is a Python timer that has not run out, or a loop with scheduled work."""
        of_python = any(
            frame.function == "Timer.run" and frame.file.endswith("/threading.py")
            for frame in self.frames
        )
        return self.limited and (of_python or self.pythons_loop)

    @property
    def timed(self) -> bool:
        """Whether Python's library will call a function at a time: a timer, or `sched`."""
        return self.of_python and self.limited and not self.looping

    @cached_property
    def packages(self) -> frozenset[str]:
        """Installed packages whose code it runs; none if user code is among it.

        Empty also for packages whose threads serve only themselves (`OWN_BUSINESS`).
        """
        found = frozenset(owner.package for owner in self.owners if owner.package)
        own_business = self.place is not None or not found.isdisjoint(OWN_BUSINESS)
        return frozenset() if own_business else found

    @cached_property
    def of_python(self) -> bool:
        """Whether it runs nothing but the interpreter's library, which may call anybody back."""
        return all(is_standard(frame.file) for frame in self.frames)

    @cached_property
    def has_task(self) -> bool:
        """Whether an executor runs a task in it: who waits for the task is called back then."""
        return any(
            frame.file.endswith("/concurrent/futures/thread.py")
            and bare_name(frame.function) == "run"
            for frame in self.frames
        )

    @property
    def runs_any(self) -> bool:
        """Whether it is Python's own event loop or executor: no stack shows whom it calls next."""
        return (self.pythons_loop and self.place is None) or (self.has_task and self.of_python)

    @property
    def may_train(self) -> bool:
        """Whether it runs the user's code, or that of a library that trains."""
        return self.place is not None or any(map(trains, self.frames))

    @cached_property
    def scheduled(self) -> bool:
        """Whether it is a library's thread that waits until a time, as a job scheduler does.

        What its job did not find at one time it may find at the next.
        """
        return bool(self.packages) and self.limited and self.for_threads

    @property
    def sleeps(self) -> bool:
        """Whether it waits only for a time, and was not seen to do so repeatedly."""
        return (
            {target.kind for target in self.targets} == {"time"}
            and not self.ticks
            and not self.timer
        )

    @property
    def acts(self) -> bool:
        """Whether it may bring what others wait for.

        It runs user code, or work that user code gave to a timer, queue, pool or loop: Python's
        event loop with connections runs coroutines that no stack shows; one with so many that none
        is named has not even its waker among the targets. Or it is a library's thread that does
        more than rest.
        """
        in_loop = self.pythons_loop and (bool(self.named) or not self.targets)
        if self.place is not None or self.timer or self.has_task or in_loop:
            return True
        in_library = bool(self.packages) or (self.of_python and not self.ticks)
        works = self.scheduled or not self.rests
        return in_library and bool(self.frames) and works and not self.pythons_loop

    @cached_property
    def rests(self) -> bool:
        """Whether it only waits for news; a writer to a full pipe works for somebody."""
        reads = bool(self.named) and all(
            (target.kind in ("socket", "pipe") or target.name.startswith(EVENTS))
            and target.call not in WRITES
            for target in self.named
        )
        serves_many = self.looping and not self.targets
        return (reads or self.for_threads) and not (self.pythons_loop or serves_many)

    @property
    def heard(self) -> tuple[WaitTarget, ...]:
        """Connections and pipes of a thread that may call the user back by what comes there.

        For example a server's thread, a broker client's, or that of a library's process pool.
        """
        calls_back = self.rests and self.place is None and (self.of_python or bool(self.packages))
        named = self.named if calls_back else ()
        return tuple(target for target in named if target.kind in ("socket", "pipe"))

    @cached_property
    def owners(self) -> frozenset[Owner]:
        """Whose code it runs."""
        return frozenset(owner_of(frame.file) for frame in self.frames)


class WaitChain(NamedTuple):
    """The threads through which a thread's wait leads, the waiting one first.

    ``ends`` are those that wait for no further thread, or only until a time; empty if nobody is
    left to end the wait.
    """

    threads: tuple[Thread, ...]
    ends: tuple[Thread, ...]

    @property
    def leads_on(self) -> bool:
        """Whether the first one waits for other threads of its process."""
        return self.ends != (self.threads[0],)


class Moment:
    """All threads of a process in one sample.

    Args:
        sample: Of the process.
        before: The previous complete moment, to see what changed.
    """

    def __init__(self, sample: Sample, before: Moment | None) -> None:
        self.sample = sample
        self.kernel = sample.kernel
        self.complete = sample.stack is not None and sample.kernel is not None
        self.states = sample.kernel.threads if sample.kernel is not None else ()
        self._before = before

    @cached_property
    def threads(self) -> tuple[Thread, ...]:
        """The threads that run Python, the training one first."""
        stacks = self.sample.stack.threads if self.sample.stack is not None else ()
        states = {thread.tid: thread for thread in self.states}
        before = (
            {thread.tid: thread for thread in self._before.threads}
            if self._before is not None
            else {}
        )
        program = program_of(functions_in(stacks[0].frames)) if stacks else ""
        return tuple(
            Thread(
                thread,
                states.get(thread.tid or 0),
                before.get(thread.tid) if thread.tid else None,
                program,
            )
            for thread in stacks
        )

    @cached_property
    def helpers(self) -> tuple[Thread, ...]:
        """The threads beside the main one that might end somebody's wait."""
        return tuple(
            thread
            for thread in self.threads[1:]
            if may_help(thread.stack)
            and not (  # autograd's: known to the interpreter, no Python, at rest
                thread.state is not None
                and not thread.frames
                and thread.state.name.startswith(HOUSEKEEPERS)
                and thread.state.syscall in FUTEXES
            )
        )

    @cached_property
    def chain(self) -> WaitChain | None:
        """Where the main thread's wait leads; None without stacks or the kernel's view."""
        return self.follow(self.threads[0]) if self.complete and self.threads else None

    def follow(self, first: Thread) -> WaitChain:
        """Follow a thread's wait through the threads that could end it."""
        followed, ends, met = [first], [], {first}
        for thread in followed:
            enders = self._enders(thread) if thread.for_threads else self._callbacks(thread)
            if not thread.for_threads and not enders:
                ends.append(thread)
                continue
            # a loop that is awake shows none of its connections
            if thread.named or (thread.looping and (thread.limited or thread.runs)):
                ends.append(thread)
            new = [ender for ender in enders if ender not in met]
            met.update(new)
            followed += new
        # a loop without work may be called by anybody or nobody: a timer surely ends
        unasked = bool(ends) and all(end.looping for end in ends) and not given_away(first.stack)
        surely = (each for each in followed if (each.timer and not each.looping) or each.scheduled)
        late = [thread for thread in surely if thread is not first]
        ends = late or ends if unasked else ends + late
        ends = ends or [thread for thread in followed if thread.limited]
        return WaitChain(tuple(followed), tuple(ends))

    def _callbacks(self, thread: Thread) -> Sequence[Thread]:
        """Return the threads in which native code that this one called runs Python.

        The interpreter knows such a thread only while it does: that of an iterator which a library
        in Rust goes over, or of a file system that one in C++ reads from.
        """
        in_native = bool(thread.words) and not thread.limited and not thread.for_ranks
        if not in_native or not thread.frames or find_wait(thread.frames) is not None:
            return ()
        strange = (helper for helper in self.helpers if helper.frames and not helper.stack.name)
        return [helper for helper in strange if bare_name(helper.frames[0].function) not in ENTRIES]

    def _enders(self, thread: Thread) -> Sequence[Thread]:
        """Return the threads that could end a thread's wait.

        The thread that it joins or that owns its lock, if known; nobody if it owns that lock
        itself. Otherwise threads of the pool or loop that it gave work to. Otherwise threads that
        run code of the same owner, and all that do more than wait for news. A timer or a task may
        end any wait: it may give a lock back, too. A bystander ends only a join of it.
        """
        stack, by_their_end = thread.stack, joins(thread.stack)
        known = stack.joined if by_their_end else stack.held_by
        the_one = [thread for thread in self.threads if known is not None and thread.tid == known]
        if the_one or stack.holds_lock:
            return the_one
        gave_to = _families(_innermost_standard(thread.frames))
        others = (helper for helper in self.helpers if gave_to and helper is not thread)
        workers = [helper for helper in others if gave_to & _families(helper.frames)]
        if workers:
            return workers
        calling = next(
            (frame for frame in reversed(thread.frames) if not is_standard(frame.file)), None
        )
        owner = owner_of(calling.file) if calling is not None else None
        if by_their_end and not any(owner in helper.owners for helper in self.helpers):
            return self.helpers
        news = not in_lock(stack)
        # whoever is in a module of the interpreter's library may hold its lock, as on an import
        inner = "" if news else stack.frames[-1].file
        of_library = inner if is_standard(inner) and not inner.endswith("/threading.py") else None
        return [
            helper
            for helper in self.helpers
            if (
                owner in helper.owners
                or not helper.rests
                or any(frame.file == of_library for frame in helper.frames)
                or helper.timer
                or helper.scheduled
                or helper.has_task
            )
            and (by_their_end or not helper.stack.bystander)
        ]

    @cached_property
    def ends(self) -> tuple[Thread, ...]:
        """The threads in which the main thread's wait ends, as far as the kernel shows them.

        The main thread itself if nobody is left to end its wait, or without stacks.
        """
        if self.chain is not None:
            found = self.chain.ends or self.chain.threads[:1]
            return tuple(end for end in found if end.state is not None)
        return tuple(Thread(ThreadStack(tid=thread.tid), thread) for thread in self.states[:1])

    @property
    def awake(self) -> bool:
        """Whether a thread in which the main thread's wait ends was ready to run."""
        ready = any(thread.state == "R" for thread in self.states)  # mostly none; the rest costs
        return ready and any(end.runs for end in self.ends)

    @cached_property
    def targets(self) -> tuple[tuple[int, WaitTarget], ...]:
        """What the main thread's wait rests on: (thread id, target) of the threads at its end."""
        return tuple((end.tid or 0, target) for end in self.ends for target in end.named)

    def shares_since(self, before: Moment) -> dict[int, float]:
        """Return the cores that each thread used since an earlier moment, by kernel id."""
        seconds = self.seconds_since(before)
        old = {thread.tid: thread.cpu_s for thread in before.states if seconds > 0}
        return {
            thread.tid: max(0.0, thread.cpu_s - old[thread.tid]) / seconds
            for thread in self.states
            if thread.tid in old
        }

    @property
    def native_threads(self) -> list[ThreadState]:
        """The threads that run no Python, as far as known; in a native program all."""
        of_python = {thread.tid for thread in self.threads}
        known = self.complete or not of_python
        return [thread for thread in self.states[1:] if known and thread.tid not in of_python]

    def starved_since(self, before: Moment) -> bool:
        """Whether the main thread was ready to run, but others had the processor."""
        queued = [thread.queued_s for thread in (*before.states[:1], *self.states[:1])]
        if len(queued) < 2 or queued[0] is None or queued[1] is None:
            return False
        return queued[1] - queued[0] > STARVED_SHARE * self.seconds_since(before)

    def seconds_since(self, before: Moment) -> float:
        """Return the seconds since an earlier moment."""
        return (self.sample.taken_ns - before.sample.taken_ns) / NANOSECONDS


def interpreter_lock_keeper(moments: Sequence[Moment], beat: Beat | None) -> ThreadStack | None:
    """Return the thread that keeps the interpreter lock, maybe the main one.

    A thread in a C call may not release it, and then the page's pulse stands still. Without a page,
    a thread that has the lock in two samples while it sleeps keeps it. A thread that only gets no
    processor would go on.
    """
    seen = moments[-2:]
    owners = [
        [thread.stack for thread in each.threads if thread.stack.owns_gil][:1] for each in seen
    ]
    if len(seen) < 2 or not owners[1] or seen[1].starved_since(seen[0]):
        return None
    (keeper,), before = owners[1], owners[0]
    if beat is not None and beat.pulse_ns > 0:
        stale = seen[1].sample.taken_ns - beat.pulse_ns > STALE_S * NANOSECONDS
        return keeper if stale else None
    same = [(thread.tid, thread.frames) for thread in before] == [(keeper.tid, keeper.frames)]
    computes = seen[1].shares_since(seen[0]).get(keeper.tid or 0, 0.0) >= BUSY_SHARE
    return keeper if same and not computes else None


def joins(thread: ThreadStack) -> bool:
    """Whether it waits for the end of threads: of one, or of all at the interpreter's exit."""
    return any(
        frame.file.endswith("/threading.py") and bare_name(frame.function) in ("join", "_shutdown")
        for frame in thread.frames[-2:]
    )


def in_lock(thread: ThreadStack) -> bool:
    """Whether it waits for a lock itself, not for news that comes behind one."""
    if not thread.frames or thread.holds_lock or thread.held_by is not None:
        return bool(thread.frames)
    inner = thread.frames[-1]
    in_library = is_standard(inner.file)
    return bare_name(inner.function) in TAKE_LOCKS if in_library else thread.takes_lock


def awaits_news(thread: ThreadStack) -> bool:
    """Whether it may wait for a library's call back: not for a lock, nor for work at a queue."""
    at_queue = any(frame.file.endswith("/queue.py") for frame in _innermost_standard(thread.frames))
    return not (in_lock(thread) or at_queue)


def given_away(thread: ThreadStack) -> bool:
    """Whether it waits for the end of threads, or for an executor, or for ranks' last calls."""
    if joins(thread) or awaits_executor(thread):
        return True
    wait = find_wait(thread.frames)
    return wait is not None and wait.kind == "last_calls"


def awaits_executor(thread: ThreadStack) -> bool:
    """Whether it waits for what threads of an executor should do."""
    return any("/concurrent/futures/" in frame.file for frame in _innermost_standard(thread.frames))


def in_event_loop(frames: Sequence[Frame]) -> bool:
    """Whether it waits in an event loop; a native loop's stack (uvloop) ends in its start."""
    files = [frame.file for frame in frames[-2:]]
    if files and files[-1].endswith(STARTS_NATIVE_LOOP):
        return True
    waits = len(files) > 1 and files[1].endswith("/selectors.py")
    return waits and files[0].endswith("/asyncio/base_events.py")


def may_help(thread: ThreadStack) -> bool:
    """Whether a thread might end somebody's wait: it is not parked, and not one of ours."""
    parked = any(
        rule.rests and holds(rule, thread.frames, position)
        for position, frame in enumerate(thread.frames)
        for rule in rules_of(frame)
    )
    files = [frame.file for frame in thread.frames if not is_standard(frame.file)]
    return not parked and (not files or not all(map(is_ours, files)))


def feeds_queue(frame: Frame) -> bool:
    """Whether a call is that of a multiprocessing.Queue's feeder thread."""
    return frame.function.endswith("_feed") and frame.file.endswith("/multiprocessing/queues.py")


def _families(frames: Iterable[Frame]) -> frozenset[int]:
    """Return in which of `FAMILIES` any of these calls is."""
    files = {frame.file for frame in frames}
    return frozenset(
        number
        for number, family in enumerate(FAMILIES)
        if any(part in file for file in files for part in family)
    )


def _innermost_standard(frames: Sequence[Frame]) -> Iterator[Frame]:
    return takewhile(lambda frame: is_standard(frame.file), reversed(frames))


def trains(frame: Frame) -> bool:
    """Whether a call is in a library that trains, and so may make collectives."""
    package = owner_of(frame.file).package
    return package in TRAINING and (package != "torch" or "/torch/distributed/" in frame.file)
