"""What probes saw from outside, and what they could not see."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

TargetKind = Literal[
    "lock", "file", "fifo", "pipe", "terminal", "socket", "process", "futex", "shared", "time",
    "other",
]  # fmt: skip

PAGE_FAULT = "page fault"
_WRITTEN_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):(?P<line>\d{1,9})\)")


GapKind = Literal[
    "stack", "local_values", "native_calls", "kernel_state", "holders", "gpu", "flight_record",
    "page", "recording", "journal", "process_memory", "watcher", "sleep", "activity", "rank",
    "other_nodes", "job_facts", "saved_evidence", "time", "other",
]  # fmt: skip
"""Which evidence is missing: ``process_memory`` a command line or environment, ``recording`` all
that a job's ranks tell of themselves, ``rank`` a process that is no rank's, or a rank without one,
``other`` in cases that were saved before gaps had a kind."""


class Gap(Struct, frozen=True):
    """A fact too: what could not be seen, and why, as in `model.verdict.Gap`.

    ``remedy`` is what would allow it, in one clause; empty where nothing does, or ``why`` says it.
    """

    what: str
    rank: int | None
    why: str
    kind: GapKind = "other"
    remedy: str = ""

    @property
    def reason(self) -> str:
        """Why it could not be seen, and what would allow it, as a person reads it."""
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
NAMELESS = COMPREHENSIONS | {"<lambda>"}
"""What Python calls the functions that it makes within others; their callers are mostly those."""


class Frame(Struct, frozen=True):
    """One Python (or native) call."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @classmethod
    def parse(cls, text: str) -> Frame | None:
        """Read a frame that was written as text, None if it is of another form."""
        found = _WRITTEN_FRAME.fullmatch(text)
        return cls(found["function"], found["file"], int(found["line"])) if found else None


class ThreadStack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thread's calls, outermost first.

    Attributes:
        tid: Of the kernel, None where the source does not tell; the pid in the main thread.
        ident: Python's identifier of the thread, by which torch's record names who entered an
            operation; 0 where the source does not tell.
        active: The sampler's own guess that it was running, not waiting.
        owns_gil: It held the interpreter lock.
        takes_lock: The line of its innermost frame takes a lock: ``with lock:`` or ``.acquire(``.
        holds_lock: A call further out on the same stack is inside the ``with`` block of the very
            lock that the innermost one takes.
        held_by: Kernel id of the one other thread that is inside the ``with`` block of that very
            lock, None where it is not known.
        joined: Kernel id of the thread whose end it waits for, None where it is not known.
        bystander: By its source, nothing that it runs from here on gives back a lock or brings
            news: but for its own end, it ends no other thread's wait.
    """

    tid: int | None
    name: str = ""
    ident: int = 0
    active: bool = False
    owns_gil: bool = False
    takes_lock: bool = False
    holds_lock: bool = False
    held_by: int | None = None
    joined: int | None = None
    bystander: bool = False
    frames: tuple[Frame, ...] = ()

    @property
    def label(self) -> str:
        """Its name, or its number where it has none."""
        return self.name or str(self.tid)


class ProcessStack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All Python threads of one process at one moment; the one that trains first where it is known.

    Mostly that is the main thread; see `look.threads`. One ``from_file`` was taken by somebody of a
    job that stood still.
    """

    pid: int
    source: str
    threads: tuple[ThreadStack, ...] = ()
    from_file: bool = False


class Holder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that could end somebody's wait.

    Attributes:
        program: Its name, as /proc/PID/comm has it.
        cpu_s: User plus system time so far, seconds: tells whether a process outside the job works.
        moved_bytes: Read and written so far, likewise; 0 where not permitted.
        host: On which it runs, where that is another than the waiter's.
    """

    pid: int
    program: str = ""
    cpu_s: float = 0.0
    moved_bytes: int = 0
    host: str = ""


class WaitTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a system call waits for.

    Attributes:
        call: The call's name. Where a thread polls for a lock instead, ``filelock`` or
            ``baton.wait`` (torch's) by that library, ``exists`` by any code that asks whether a
            file is gone, ``sleep`` by native code with a file open that another process keeps
            locked. ``page fault`` where the kernel reads a page of a mapped file.
        kind: ``lock`` a lock on a file; ``process`` the end of a child; ``futex`` a word of memory
            in this process, without a time limit; ``shared`` one that other processes map, too, as
            a semaphore's; ``time`` a time limit, at which the call ends by
            itself; the others what the descriptor is.
        name: Path of a file; ``ADDR:PORT`` of a socket's remote end; ``pipe:[INODE]``; the pid of a
            child; the address of a futex; ``memory:[DEVICE:INODE]``, or a path that any program
            may open. Empty where it could not be read.
        holders: Processes that could end the wait, as far as known: who holds the lock, has the
            other end of the pipe or socket, maps the memory, or is the child.
        abandoned: Of a lock: whoever made it is known to be gone, and the waiter asks for ever.
        connection: Inode of a socket: of two at the same remote end it tells which.
        own_end: Of a connection that leads to ``name``: this end of it, ``ADDR:PORT``.
        carried_bytes: What a TCP connection received and had acknowledged so far; None where the
            kernel does not tell, and for all else.
        shared_storage: Of a file or the lock on one: the file system answers over a network, so
            that the same path may be the same file on other hosts.
    """

    call: str
    kind: TargetKind
    name: str = ""
    holders: tuple[Holder, ...] = ()
    abandoned: bool = False
    connection: int | None = None
    own_end: str = ""
    carried_bytes: int | None = None
    shared_storage: bool = False


class ThreadState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The kernel's view of one thread.

    Attributes:
        name: The kernel's, of 15 characters at most; empty in what was recorded before it was kept.
        state: Letter of /proc/PID/task/TID/stat: R running, S sleeping, D uninterruptible,
            T stopped, t traced, Z zombie.
        cpu_s: User plus system time so far, seconds, at the kernel's tick (usually 10 ms).
        turns: How often it was given a processor so far; None for all but the main thread, and
            where the kernel does not count (CONFIG_SCHED_INFO).
        queued_s: How long it was ready and waited for a processor so far; known where ``turns`` is.
        wchan: Kernel function it sleeps in; empty when running or not shown.
        syscall: Number of the system call it is in, None when running, or not permitted.
        arguments: First six arguments of that call.
        waits_for: What that call waits for; several for a call that waits for any of them.
        wakes_ns: Monotonic time until which it sleeps, or waits in `threading` (Python 3.11 and
            later): one that ticks shows another each time.
        moved_bytes: Read and written by its own calls so far; None where that is not counted. The
            process's count has also those of children that have ended.
    """

    tid: int
    state: str
    cpu_s: float
    name: str = ""
    turns: int | None = None
    queued_s: float | None = None
    wchan: str = ""
    syscall: int | None = None
    arguments: tuple[int, ...] = ()
    waits_for: tuple[WaitTarget, ...] = ()
    wakes_ns: int | None = None
    moved_bytes: int | None = None


class MemoryUse(Struct, frozen=True):
    """Memory in use, without cached files that nobody used lately, and the limit that holds.

    ``scope`` is whose limit: ``machine`` or ``control group``.
    """

    used_bytes: int
    limit_bytes: int
    scope: str


class Connection(Struct, frozen=True, array_like=True):
    """Both ends of a TCP connection, ``ADDR:PORT``, as the process that has one of them sees it."""

    own: str
    remote: str


class AddressReach(Struct, frozen=True, array_like=True):
    """What the connections of some processes show of an address that they lead to.

    Attributes:
        heard_s: Seconds since anything came from there, data or an acknowledgement.
        unanswered: Connections on which sent data is repeated, as no acknowledgement comes.
        unanswered_s: Seconds for which that one has none that was without the longest; 0 if none.
    """

    address: str
    heard_s: float
    unanswered: int = 0
    unanswered_s: float = 0.0


class ProcessState(Struct, frozen=True, kw_only=True):
    """The kernel's view of one process.

    Attributes:
        started_ticks: Field 22 of /proc/PID/stat: with the pid it names a process for ever.
        read_bytes: Bytes that passed through read-like calls so far (rchar); None if not permitted.
        written_bytes: Likewise for writing (wchar).
        network_bytes: Bytes that its TCP connections received and had acknowledged so far; None
            where the kernel does not tell. Downloads do not show in ``read_bytes``.
        connections: Its TCP connections to other addresses than its own; at most 64.
        major_faults: Pages so far that had to be read from disk.
        exit_code: Of one that failed and whose parent has not asked for it yet, as subprocess gives
            it (negative: killed by that signal). None for all else, and where it is not shown.
        memory: Of the tightest limit that holds for it, None where that cannot be read.
        catches_timers: It has a handler for the signals of interval timers (``signal.alarm``), or
            for one of those that are there for programs to send: no file of the kernel shows
            whether a timer runs, or who sends. It may wake the main thread at any time.
        catches_alarm: It has one for SIGALRM, by which programs end what takes them too long.
        polls: A library's thread of it polls without end, by design: that thread is left out, and
            its processor time is not in ``cpu_s``.
        threads: The one that trains first, mostly the main one; at most 256, the rest counted
            in ``threads_left_out``.
    """

    pid: int
    parent_pid: int
    state: str
    started_ticks: int
    cpu_s: float
    rss_bytes: int = 0
    major_faults: int = 0
    exit_code: int | None = None
    memory: MemoryUse | None = None
    catches_timers: bool = False
    catches_alarm: bool = False
    polls: bool = False
    read_bytes: int | None = None
    written_bytes: int | None = None
    network_bytes: int | None = None
    connections: tuple[Connection, ...] = ()
    threads: tuple[ThreadState, ...] = ()
    threads_left_out: int = 0


class GpuState(Struct, frozen=True, kw_only=True):
    """A GPU that a process uses, by NVIDIA's management library (NVML); None where it is not told.

    Attributes:
        index: As nvidia-smi counts.
        busy_percent: Share of the last 0.2 to 1 s (by model) in which any kernel ran on it.
        own_busy_percent: Share of its processors that this process's kernels used lately.
        full_clock_mhz: The most that its processors can do.
        slowed_by: Why the clock is held down: ``thermal``, ``power``, ``hardware``.
        uncorrected_errors: Of memory (ECC), since the driver was loaded.
    """

    index: int
    name: str = ""
    busy_percent: int | None = None
    own_busy_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    own_memory_bytes: int | None = None
    power_w: float | None = None
    clock_mhz: int | None = None
    full_clock_mhz: int | None = None
    slowed_by: tuple[str, ...] = ()
    uncorrected_errors: int | None = None


class LocalValues(Struct, frozen=True):
    """Local variables of one call, as short text, secrets hidden."""

    frame: Frame
    values: dict[str, str]


class Sample(Struct, frozen=True, kw_only=True):
    """One look at one process: kernel state and stacks taken together.

    A part that could not be taken is None, and a `Gap` beside the sample says why.

    Attributes:
        local_values: Of the main thread's calls, outermost first; only where somebody asked.
        native_calls: Inside its innermost Python frame, outermost first; only in a closer look.
    """

    taken_ns: int
    kernel: ProcessState | None = None
    stack: ProcessStack | None = None
    gpus: tuple[GpuState, ...] = ()
    local_values: tuple[LocalValues, ...] = ()
    native_calls: tuple[str, ...] = ()


class ProcessLook(Struct, frozen=True, kw_only=True):
    """A process seen several times, oldest sample first.

    Attributes:
        role: ``rank`` the training process itself; ``worker`` a Python process that it started with
            multiprocessing (DataLoader workers); ``child`` anything else below it.
        index: Position among the processes of that role of the rank that are left, by start time:
            it tells nodes of the graph apart, and is not torch's number of a worker.
    """

    pid: int
    role: str
    index: int = 0
    samples: tuple[Sample, ...] = ()
