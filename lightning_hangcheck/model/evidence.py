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
OF_MAIN_THREADS = ("pt_main_thread", "pt_data_worker")
"""What torch calls main threads (some versions): all threads that these start are called so."""
_WRITTEN_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):(?P<line>\d{1,9})\)")


GapKind = Literal[
    "stack", "local_values", "native_calls", "kernel_state", "holders", "gpu", "flight_record",
    "page", "recording", "journal", "process_memory", "watcher", "sleep", "activity", "rank",
    "other_nodes", "job_facts", "saved_evidence", "time", "other",
]  # fmt: skip
"""The missing evidence: ``process_memory`` a command line or environment, ``recording`` all that a
job's ranks report about themselves, ``rank`` a process without a rank or a rank without a process,
``other`` only in cases that earlier versions saved."""


class Gap(Struct, frozen=True):
    """What could not be seen, and why, as in `model.verdict.Gap`.

    ``remedy``, one clause, is what would make it visible; empty if nothing does, or ``why`` says
    it.
    """

    what: str
    rank: int | None
    why: str
    kind: GapKind = "other"
    remedy: str = ""

    @property
    def reason(self) -> str:
        """Why it could not be seen, and what would make it visible, for people."""
        return f"{self.why}; {self.remedy}" if self.remedy else self.why


COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
NAMELESS = COMPREHENSIONS | {"<lambda>"}
"""Python's names of functions that it makes within others, which mostly call them."""


class Frame(Struct, frozen=True):
    """One Python (or native) call."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @classmethod
    def parse(cls, text: str) -> Frame | None:
        """Read a frame that was written as text; None if the text has another form."""
        found = _WRITTEN_FRAME.fullmatch(text)
        return cls(found["function"], found["file"], int(found["line"])) if found else None


class ThreadStack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A thread's calls, outermost first.

    Attributes:
        tid: The kernel's number, in the main thread the pid; None if the source does not have it.
        ident: Python's identifier of the thread, with which torch's record names the thread that
            entered an operation; 0 if the source does not have it.
        active: The sampler's own guess that it was running, not waiting.
        owns_gil: It held the interpreter lock.
        takes_lock: The line of its innermost frame takes a lock: ``with lock:`` or ``.acquire(``.
        holds_lock: A call further out on the same stack is inside the ``with`` block of the same
            lock.
        held_by: Kernel id of the one other thread inside a ``with`` of the same lock; None if
            unknown.
        joined: Kernel id of the thread whose end it waits for; None if unknown.
        bystander: By its source, nothing that it still runs releases a lock or brings news: only
            its own end could end another thread's wait.
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
        """Its name, or its number if it has no name."""
        return self.name or str(self.tid)


class ProcessStack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All Python threads of one process at one moment; the training thread first, if known.

    That is mostly the main thread; see `look.threads`. ``from_file``: somebody saved it of a stuck
    job.
    """

    pid: int
    source: str
    threads: tuple[ThreadStack, ...] = ()
    from_file: bool = False


class Holder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process that could end somebody's wait.

    Attributes:
        program: Its name, from /proc/PID/comm.
        cpu_s: User plus system time so far, seconds; shows whether a process outside the job works.
            Of one that holds a lock, with its descendants.
        moved_bytes: Bytes read and written so far, likewise; 0 if not permitted.
        listens: A process outside the job, whose main thread, or that of a descendant outside the
            job, waits for what a socket brings.
        host: Host on which it runs, if that is not the waiter's.
        awaits: Processes of the job for which alone it waits, as a launcher does that joins them:
            it uses nothing that it holds before one of these goes on. Empty if that is not known.
    """

    pid: int
    program: str = ""
    cpu_s: float = 0.0
    moved_bytes: int = 0
    listens: bool = False
    host: str = ""
    awaits: tuple[int, ...] = ()


class WaitTarget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a system call waits for.

    Attributes:
        call: The call's name. If a thread polls for a lock instead: ``filelock`` or ``baton.wait``
            (torch's) by that library, ``exists`` by any code that asks whether a file is gone,
            ``sleep`` by native code with a file open that another process keeps locked.
            ``page fault`` if the kernel reads a page of a mapped file.
        kind: ``lock`` a lock on a file; ``process`` the end of a child; ``futex`` a word of memory
            in this process, without a time limit; ``shared`` a word that other processes map, too,
            such as a semaphore's; ``time`` a time limit, at which the call ends by itself; the
            others say what the descriptor is.
        name: Path of a file; ``ADDR:PORT`` of a socket's remote end; ``pipe:[INODE]``; the pid of a
            child; the address of a futex; ``memory:[DEVICE:INODE]``, or a path that any program may
            open. Empty if it could not be read.
        holders: Processes that could end the wait, as far as known: the one that holds the lock,
            has the other end of the pipe or socket, maps the memory, or is the child.
        abandoned: Of a lock: its maker is known to be gone, and the waiter polls for ever.
        limited: Of a lock that is polled for: the waiter has set itself a time limit.
        connection: Inode of a socket; distinguishes two sockets with the same remote end.
        own_end: Of a connection to ``name``: this end of it, ``ADDR:PORT``; alone for a UDP socket
            at which anybody may send.
        carried_bytes: Bytes that a TCP connection received and had acknowledged so far; None if the
            kernel does not show it, and for all else.
        shared_storage: Of a file or its lock: the file is on a network file system, so the same
            path may be the same file on other hosts.
    """

    call: str
    kind: TargetKind
    name: str = ""
    holders: tuple[Holder, ...] = ()
    abandoned: bool = False
    limited: bool = False
    connection: int | None = None
    own_end: str = ""
    carried_bytes: int | None = None
    shared_storage: bool = False


class ThreadState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The kernel's view of one thread.

    Attributes:
        name: The kernel's name, of 15 characters at most; empty in old recordings.
        state: Letter of /proc/PID/task/TID/stat: R running, S sleeping, D uninterruptible, T
            stopped, t traced, Z zombie.
        cpu_s: User plus system time so far, seconds, at the kernel's tick (usually 10 ms).
        turns: How often it was given a processor so far; None for all but the main thread, and if
            the kernel does not count (CONFIG_SCHED_INFO).
        queued_s: Seconds that it was ready and waited for a processor; known if ``turns`` is.
        wchan: Kernel function it sleeps in; empty when running or not shown.
        syscall: Number of the system call it is in; None if it is running, or if not permitted.
        arguments: First six arguments of that call.
        waits_for: What that call waits for; several for a call that waits for any of them.
        wakes_ns: Monotonic time until which it sleeps, or waits in `threading` (Python 3.11 and
            later); a periodic thread shows another each time.
        moved_bytes: Bytes read and written by its own calls so far; None if not counted. The
            process's count includes children that have ended.
        library: File name of the library that waits in that call, of a native thread that has the
            main thread's name; empty if unknown.
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
    library: str = ""


class MemoryUse(Struct, frozen=True):
    """Memory in use, without cached files that were not used lately, and the limit that applies.

    ``scope`` is whose limit: ``machine`` or ``control group``.
    """

    used_bytes: int
    limit_bytes: int
    scope: str


class Connection(Struct, frozen=True, array_like=True):
    """Both ends of a TCP connection, ``ADDR:PORT``, as the process at one end sees them."""

    own: str
    remote: str


class AddressReach(Struct, frozen=True, array_like=True):
    """What the connections of some processes show about their remote address.

    Attributes:
        heard_s: Seconds since anything came from the address, data or an acknowledgement.
        unanswered: Connections that repeat sent data, as no acknowledgement comes.
        unanswered_s: Longest time for which one of these had no acknowledgement; 0 if none.
    """

    address: str
    heard_s: float
    unanswered: int = 0
    unanswered_s: float = 0.0


class ProcessState(Struct, frozen=True, kw_only=True):
    """The kernel's view of one process.

    Attributes:
        started_ticks: Field 22 of /proc/PID/stat; with the pid it identifies a process for ever.
        read_bytes: Bytes that passed through read-like calls so far (rchar); None if not permitted.
        written_bytes: Likewise for writing (wchar).
        network_bytes: Bytes that its TCP connections received and had acknowledged so far; None if
            the kernel does not show it. Downloads do not show in ``read_bytes``.
        connections: Its TCP connections to addresses other than its own; at most 64.
        major_faults: Pages so far that had to be read from disk.
        exit_code: Of a process that failed and whose parent has not collected it yet, as in
            subprocess (negative: killed by that signal). None for all else, and if it is not shown.
        memory: Of the tightest limit that applies to it; None if that cannot be read.
        catches_timers: It handles signals of interval timers (``signal.alarm``), or signals that
            programs send; the handler may wake the main thread at any time. No file of the kernel
            shows whether a timer runs, or who sends.
        catches_alarm: It handles SIGALRM, with which programs end what takes too long.
        polls: A thread of a library in it polls without end, by design: that thread is left out,
            and its processor time is not in ``cpu_s``.
        threads: The training thread first, mostly the main one; at most 256, then
            ``threads_left_out``.
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
    """A GPU that a process uses, by NVIDIA's management library (NVML); None if not reported.

    Attributes:
        index: nvidia-smi's number.
        busy_percent: Share of the last 0.2 to 1 s (by model) in which any kernel ran on it.
        own_busy_percent: Share of its processors that this process's kernels used recently.
        full_clock_mhz: Highest clock of its processors.
        slowed_by: Why the clock is held down: ``thermal``, ``power``, ``hardware``.
        uncorrected_errors: Uncorrected memory (ECC) errors since the driver was loaded.
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

    A part that could not be taken is None, and a `Gap` of the case says why.

    Attributes:
        local_values: Of the main thread's calls, outermost first; only if somebody asked.
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
        index: Position among the rank's remaining processes of that role, by start time. It
            distinguishes nodes of the graph, and is not torch's number of a worker.
    """

    pid: int
    role: str
    index: int = 0
    samples: tuple[Sample, ...] = ()
