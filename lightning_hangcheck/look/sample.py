"""Takes a look at one process or a whole job; one deadline is handed down to all that it reads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.look.flight_record import NCCL2_THREADS, flight_record
from lightning_hangcheck.look.gpu import Gpus, gpus_of
from lightning_hangcheck.look.kernel import (
    CALLS,
    kernel_state,
    led_by,
    memory_use,
    with_libraries,
    with_threads_of,
)
from lightning_hangcheck.look.open_files import Holders
from lightning_hangcheck.look.proc import Looked, Unseen, guarded, has_thread, root_of, vitals
from lightning_hangcheck.look.source import Sources, code_notes
from lightning_hangcheck.look.stacks import (
    PY_SPY,
    Variables,
    local_values,
    native_calls,
    python_stacks,
    signalled_stacks,
)
from lightning_hangcheck.look.threads import (
    at_locks,
    polled_locks,
    sleeping_beside,
    training_first,
    with_bystanders,
    with_relations,
)
from lightning_hangcheck.machine import read_proc
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.code_owner import is_standard
from lightning_hangcheck.model.evidence import (
    Gap,
    LocalValues,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadState,
)
from lightning_hangcheck.model.flight import FLIGHT_RECORD, FlightRecord
from lightning_hangcheck.session.session import why_withheld

if TYPE_CHECKING:
    from pathlib import Path


Role = Literal["rank", "worker", "child"]

AT_ONCE = 16
GPU_LIMIT_S = 2.0
FLIGHT_LIMIT_S = 2.0
"""An answer takes 10 to 25 ms; a look must not wait long for a server that gives none."""
NATIVE_LIMIT_S = 3.0
HOLDERS = "who holds what"
KERNEL_SHARE = 0.2  # of the time limit; about 6 ms are enough for 200 threads
WHERE_RANKS_MEET = ("/torch/distributed/distributed_c10d.py", "/torch/autograd/graph.py")
"""Files of the innermost call in which a rank waits for other ranks: a collective, or backward."""


class Target(Struct, frozen=True, kw_only=True):
    """A process to look at, for a rank; ``python``: whether it can have Python stacks."""

    pid: int
    rank: int = 0
    role: Role = "child"
    index: int = 0
    python: bool = True


Found = tuple[Sequence[Target], tuple[Gap, ...]]
"""Processes to look at, and gaps for those that are left out."""


class Look(Struct, frozen=True):
    """What one look found."""

    samples: tuple[tuple[Target, Sample], ...]
    gaps: tuple[Gap, ...]
    flights: dict[int, FlightRecord] = {}  # by rank, if it has one
    code: tuple[CodeNote, ...] = ()  # the code around the lines where the ranks are

    @property
    def closer(self) -> bool:
        """Whether it read native calls of any process."""
        return any(sample.native_calls for _, sample in self.samples)


class KeptStacks:
    """The newest stacks of processes: a process that has not run since still has the same stacks.

    The kernel counts how often and how long threads ran (schedstat). If that is the same for all
    Python threads, py-spy need not run again: later looks at a hung job cost little.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[dict[int, bytes], ProcessStack]] = {}

    def of(
        self, pid: int, rank: int | None, kernel: ProcessState | None, time_limit_s: float
    ) -> Looked[ProcessStack]:
        """Return the stacks of a process whose state was just read."""
        threads = () if kernel is None else kernel.threads
        asleep = [thread.tid for thread in threads if thread.state in "SDTt"]
        kept = self._kept.pop(pid, None)
        if kept is not None and kept[0] == _runs(pid, kept[0].keys() & asleep):
            self._kept[pid] = kept
            return kept[1], ()
        before = _runs(pid, asleep)
        stack, gaps = python_stacks(pid, rank, time_limit_s)
        if stack is not None:
            tids = {thread.tid for thread in stack.threads}
            if tids <= before.keys():
                self._kept[pid] = {tid: run for tid, run in before.items() if tid in tids}, stack
        return stack, gaps

    def forget_others(self, pids: Collection[int]) -> None:
        """Drop the stacks of all other processes."""
        self._kept = {pid: kept for pid, kept in self._kept.items() if pid in pids}


def _runs(pid: int, tids: Iterable[int]) -> dict[int, bytes]:
    found = {}
    for tid in tids:
        with suppress(OSError):
            run = read_proc(f"/proc/{pid}/task/{tid}/schedstat")
            if not run.endswith(b" 0\n"):
                found[tid] = run
    return found


class Looker:
    """Takes one look at a time in a thread of its own; arguments as of `look_at`.

    ``cost_s``: processor time of this process and of those it started, during the last look.
    """

    def __init__(self, time_limit_s: float, torch_servers: Path) -> None:
        self._time_limit_s, self._torch_servers = time_limit_s, torch_servers
        self._began_s, self._kept = time.time(), KeptStacks()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="look")
        self._pending: Future[Look] | None = None
        self._given_up = threading.Event()
        self._spent_s = self.cost_s = 0.0

    @property
    def looking(self) -> bool:
        """Whether a look is running."""
        return self._pending is not None

    def begin(
        self,
        find: Callable[[], Found],
        with_values: Collection[int] = (),
        closer: Collection[int] = (),
    ) -> None:
        """Start a look at the processes that ``find`` returns; `finished` has its result."""

        def look() -> Look:
            targets, gaps = find()
            look = look_at(
                targets,
                self._time_limit_s,
                self._torch_servers,
                self._began_s,
                with_values=with_values,
                closer=closer,
                given_up=self._given_up.is_set,
                kept=self._kept,
            )
            return replace(look, gaps=look.gaps + gaps)

        self._spent_s = sum(os.times()[:4])
        self._pending = self._thread.submit(look)

    def finished(self) -> Look | None:
        """Return the running look once it is done, else None."""
        if self._pending is None or not self._pending.done():
            return None
        pending, self._pending = self._pending, None
        self.cost_s = sum(os.times()[:4]) - self._spent_s
        return pending.result()

    def close(self) -> None:
        """Give up the running look: probes that run end by their own limits, others are skipped."""
        self._given_up.set()
        self._thread.shutdown(wait=False, cancel_futures=True)


def look_at(
    targets: Sequence[Target],
    time_limit_s: float,
    servers: Path | None = None,
    unchanged_since_s: float = 0.0,
    *,
    with_values: Collection[int] = (),
    closer: Collection[int] = (),
    given_up: Callable[[], bool] = lambda: False,
    kept: KeptStacks | None = None,
) -> Look:
    """Look once at all processes of a job: samples, flight records, and the code around them.

    About 40 ms for 8 small processes on 2 cores. Stacks are read of the ranks, and of those of
    their helpers to which a wait leads; of all processes, if none is known to be a rank.

    Args:
        targets: The ranks, each with its children; samples are in their order.
        time_limit_s: Seconds for one probe of one process.
        servers: Folder of the worker servers' sockets, which serve torch's flight records.
        unchanged_since_s: As in `Sources`.
        with_values: Ranks whose local variables are read too.
        closer: Ranks whose native calls are read too, if the kernel does not show what they wait
            for. Only this pauses a process.
        given_up: Once it returns True, probes that have not begun are skipped.
        kept: Stacks of earlier looks at the same job.
    """
    of_ranks = any(target.role == "rank" for target in targets)
    subjects = [_Subject(target, not of_ranks or target.role == "rank") for target in targets]
    stacks = kept or KeptStacks()
    stacks.forget_others({target.pid for target in targets})

    def take(subject: _Subject) -> None:
        subject.taken_ns = time.monotonic_ns()
        if given_up():
            return
        pid, rank = subject.target.pid, subject.target.rank
        subject.kernel, subject.gaps = kernel_state(pid, rank, time_limit_s * KERNEL_SHARE)
        if subject.is_first and subject.kernel is not None:
            subject.kernel = replace(subject.kernel, memory=memory_use(pid))
        if subject.is_first and subject.target.python:
            take_stacks(subject)

    def take_stacks(subject: _Subject) -> None:
        """Read stacks; an error costs only this process its stacks."""
        pid, rank = subject.target.pid, subject.target.rank

        def read() -> None:
            if given_up():
                raise Unseen("no time was left to ask for it")
            subject.read_stacks(time_limit_s, stacks, rank in with_values, rank in closer)

        _, gaps = guarded("stack", f"stack of pid {pid}", rank, read)
        subject.gaps += gaps

    with ThreadPoolExecutor(AT_ONCE + 2, thread_name_prefix="hangcheck-probe") as pool:
        asked = pool.submit(_flights_of, targets, servers, time_limit_s)
        pids = [target.pid for target in targets if target.python]
        gpus_asked = pool.submit(gpus_of, pids, min(time_limit_s, GPU_LIMIT_S))
        list(pool.map(take, subjects))
        seen = [subject.kernel.pid for subject in subjects if subject.kernel is not None]
        until = time.monotonic() + time_limit_s * KERNEL_SHARE
        holders, gaps = guarded("holders", HOLDERS, None, lambda: Holders(seen, until))
        for subject in subjects:
            subject.complete(holders)
        awaited = _awaited(subjects)
        later = [
            subject
            for subject in subjects
            if subject.target.python and not subject.is_first and subject.target.pid in awaited
        ]
        list(pool.map(take_stacks, later))
        for subject in later:
            subject.complete(holders)
        gpus, missing = gpus_asked.result()
        flights, without_flight = asked.result()
    for subject in subjects[:1]:
        subject.gaps += gaps + missing + (holders.gaps if holders is not None else ())
    stand = [
        frame
        for subject in subjects
        if subject.target.role == "rank" and subject.stack is not None
        for number, thread in enumerate(subject.stack.threads)
        for frame in thread.frames
        if not number or not is_standard(frame.file)
    ]
    called = (site.frames for flight in flights.values() for site in flight.sites.values())
    return Look(
        samples=tuple((subject.target, subject.sample(gpus or {})) for subject in subjects),
        gaps=(*(gap for subject in subjects for gap in subject.gaps), *without_flight),
        flights=flights,
        code=code_notes(
            [*stand, *(frame for frames in called for frame in frames)],
            unchanged_since_s,
            time_limit_s,
            root_of(targets[0].pid) if targets else "",
        ),
    )


def _flights_of(
    targets: Sequence[Target], servers: Path | None, time_limit_s: float
) -> tuple[dict[int, FlightRecord], list[Gap]]:
    """Ask all ranks at once for their flight records, and return these by rank.

    If no rank has a server or a reason for having none, the judgement reports the gap.
    """
    if servers is None:
        return {}, []
    sockets = {
        target.rank: servers / str(target.pid) for target in targets if target.role == "rank"
    }
    if not any(socket.exists() or why_withheld(socket) for socket in sockets.values()):
        return {}, []

    def ask(rank: int) -> Looked[FlightRecord]:
        pid = int(sockets[rank].name)
        seen = vitals(pid)
        if seen is not None and seen.state in "Tt":
            why = "its process is stopped, so its server does not answer"
            return None, (Gap(FLIGHT_RECORD, rank, why, "flight_record"),)
        limit_s = min(time_limit_s, FLIGHT_LIMIT_S)
        return flight_record(sockets[rank], rank, limit_s, nccl2=has_thread(pid, NCCL2_THREADS))

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="flight") as pool:
        answers = dict(zip(sockets, pool.map(ask, sockets), strict=True))
    flights = {rank: flight for rank, (flight, _) in answers.items() if flight is not None}
    return flights, [gap for _, missing in answers.values() for gap in missing]


class _Subject:
    """One process during a look.

    ``is_first``: its stacks are always read. ``completed``: ``kernel``, completed by `Holders`.
    """

    def __init__(self, target: Target, is_first: bool) -> None:
        self.target, self.is_first = target, is_first
        self.taken_ns = 0
        self.kernel: ProcessState | None = None
        self.completed: ProcessState | None = None
        self.stack: ProcessStack | None = None
        self.local_values: tuple[LocalValues, ...] = ()
        self.native_calls: tuple[str, ...] = ()
        self.gaps: tuple[Gap, ...] = ()

    def sample(self, gpus: Gpus) -> Sample:
        return Sample(
            taken_ns=self.taken_ns,
            kernel=self.completed,
            stack=self.stack,
            gpus=gpus.get(self.target.pid, ()),
            local_values=self.local_values,
            native_calls=self.native_calls,
        )

    def complete(self, holders: Holders | None) -> None:
        kernel = self.completed = self.kernel
        if kernel is not None and holders is not None:
            found, gaps = guarded("holders", HOLDERS, None, lambda: holders.complete(kernel))
            self.completed = found or kernel
            self.gaps += tuple(gap for gap in gaps if gap not in self.gaps)

    def read_stacks(
        self, time_limit_s: float, stacks: KeptStacks, with_values: bool, closer: bool
    ) -> None:
        deadline, pid, rank = time.monotonic() + time_limit_s, self.target.pid, self.target.rank
        stack, gaps = stacks.of(pid, rank, self.kernel, time_limit_s)
        if stack is None:
            stack, gaps = signalled_stacks(pid, rank, deadline - time.monotonic(), gaps)
        self.stack, self.gaps = stack, self.gaps + gaps
        if stack is None or self.kernel is None:
            return
        kernel = with_libraries(with_threads_of(self.kernel, stack), stack)
        sources, variables = Sources.of(pid), Variables(pid, deadline)
        if self.target.role == "rank":
            stack = training_first(stack, sleeping_beside(stack, kernel, sources))
            kernel = led_by(kernel, stack.threads[0].tid)
        stack = at_locks(stack, sources)
        # to the kernel, a thread that polls for a lock sleeps: its stack knows better
        locks = polled_locks(stack, variables)
        threads = []
        for thread in kernel.threads:
            timed = (each for each in thread.waits_for if each.kind == "time")
            lock = locks.get(thread.tid)
            threads.append(replace(thread, waits_for=(lock, *timed)) if lock else thread)
        self.kernel = kernel = replace(kernel, threads=tuple(threads))
        if stack.source != PY_SPY:  # the gap for that says enough
            self.stack = with_bystanders(stack, sources)
            return
        self.stack = with_bystanders(with_relations(stack, kernel, sources, variables), sources)
        tid = stack.threads[0].tid or pid
        if with_values and self.is_first:
            values, gaps = local_values(variables, pid, rank, tid)
            self.local_values, self.gaps = values or (), self.gaps + gaps
        waits = kernel.threads[0].waits_for if kernel.threads else ()
        known = any(target.kind != "time" for target in waits)
        # py-spy cannot pause stopped threads, and one in state D would keep all others paused
        pausable = not {kernel.state, *(thread.state for thread in kernel.threads)} & set("TtD")
        if closer and self.is_first and not known and pausable:
            calls, gaps = native_calls(pid, rank, NATIVE_LIMIT_S, tid)
            self.native_calls, self.gaps = calls or (), self.gaps + gaps


def _awaited(subjects: Sequence[_Subject]) -> set[int]:
    """Return the processes to which waits of the ranks lead, directly or through others.

    If a process waits for any child, or for an unknown one, all its children count, unless it is in
    a call where ranks wait for each other.
    """
    by_pid = {subject.target.pid: subject for subject in subjects}
    states = {
        pid: process.completed for pid, process in by_pid.items() if process.completed is not None
    }
    left = [pid for pid in states if by_pid[pid].is_first]
    found = set(left)
    while left:
        state = states[left.pop()]
        targets = [target for thread in state.threads for target in thread.waits_for]
        holders = {holder.pid for target in targets for holder in target.holders}
        stack = by_pid[state.pid].stack
        frames = stack.threads[0].frames if stack is not None and stack.threads else ()
        meets = bool(frames) and frames[-1].file.endswith(WHERE_RANKS_MEET)
        if not meets and any(map(_waits_for_somebody_unseen, state.threads)):
            holders |= {other.pid for other in states.values() if other.parent_pid == state.pid}
        new = (holders & states.keys()) - found
        found |= new
        left += new
    return found


def _waits_for_somebody_unseen(thread: ThreadState) -> bool:
    """Whether a thread waits for any child, for many at once, or at a socket with an unknown end.

    Also at one by whose path a child has not answered yet, as the worker of a DataLoader that hands
    a tensor over. Or at a word of shared memory that no other process maps yet: a child that is
    being started may.
    """
    call = CALLS.get(thread.syscall) if thread.syscall is not None else None
    if call is None:
        return thread.state in "SD"
    ends = [target for target in thread.waits_for if target.kind != "time"]
    unseen = (
        any(
            target.kind == "socket" and target.name[:1] in ("", "/") and not target.holders
            for target in ends
        )
        and call.shape != "epoll"
    ) or any(target.kind == "shared" and not target.holders for target in ends)
    return unseen or (not ends and call.shape in ("poll", "select", "epoll", "child"))
