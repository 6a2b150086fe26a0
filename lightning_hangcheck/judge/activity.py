"""What each process and rank does: running, idle, waiting, stopped or gone. Pure.

The newest samples are compared. No library's name decides anything here; only frames that show a
known wait do. A process that waits for a busy GPU is not idle.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.frames import FOR_RANKS, Wait, find_wait, functions_in, users_frames
from lightning_hangcheck.judge.operations import device_wait
from lightning_hangcheck.judge.processes import (
    IDLE_SHARE,
    NEWEST,
    awaited_processes,
    awaited_threads,
    read_process,
    remembered,
)
from lightning_hangcheck.judge.threads import BUSY_SHARE, interpreter_lock_keeper
from lightning_hangcheck.model.code_owner import is_ours, is_standard
from lightning_hangcheck.model.evidence import Frame, ThreadStack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.judge.threads import Moment, Thread
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import ProcessLook, ThreadState

Activity = Literal[
    "moving", "busy", "idle", "waiting", "stopped", "gone", "missing", "unseen", "unheard"
]
JUST_NOW_S = 1.0
"""A rank whose page showed progress within this time advances, whatever the samples show."""
LIVELOCK_AFTER_S = 6.0
"""Time after which a rank that moves only through known functions is in a livelock. The looks at 2,
3 and 4 s of silence meet most functions of a loop, so at 10 s it is known."""
STORAGE_ANSWERS = 20
"""Wakes a second above which a thread that waits for storage makes progress. A call that hangs is
woken never, or once in many seconds to try again."""
QUESTION = 256
"""Bytes for each turn on the processor, below which a thread that sleeps between turns only asks
again: a poll of torch's store takes 40, over HTTP up to 150, a page of results 1,000."""
MANY_BYTES = 64 * 1024
TRANSFER_RATE = 4096
"""Bytes a second above which a read or write call makes progress. Our own threads read and write
about 700 bytes a second in the rank (a line of /proc twice a second, the journal)."""
TRANSFER_CALLS = frozenset({0, 1, 17, 18, 19, 20, 40, 63, 64, 65, 66, 67, 68, 71})
"""read, write, pread64, pwrite64, readv, writev, sendfile on x86-64, then on arm64. Numbers that
mean another call on the other machine (uname, semget, shmdt) are calls that end at once."""
DOWNLOAD_RATE = 1024
"""Bytes a second that count for a thread that waits at a connection: a gigabyte in 12 days.
Services in the process exchange fewer meanwhile."""
SHORTEST_FLOW_S = 1.0
"""Least time over which bytes are counted: our own threads read 390 of them at once."""
BUSY_PERCENT = 5
"""A GPU without work shows 0, a GPU that draws a screen up to 3."""
NEARLY_FULL = 0.95
GIB = 1 << 30


class ProcessActivity(Struct, frozen=True, kw_only=True):
    """What one process did over ``span_s`` seconds, by its newest samples.

    Attributes:
        carried: Bytes flowed, or storage answered. A loop that only computes does neither.
        starved: The main thread was ready for most of the time, but others had the processor; or a
            thread that could end its wait computes and gets little of a core.
        stacks: Whether the samples have Python stacks.
        stood: Between two samples the process stood still and was not even woken.
    """

    activity: Activity
    samples: int = 0
    span_s: float = 0.0
    cpu_share: float = 0.0
    bytes: int = 0
    carried: bool = False
    starved: bool = False
    stacks: bool = False
    stood: bool = False


class RankActivity(Struct, frozen=True, kw_only=True):
    """What a rank does, with all its processes taken into account.

    Attributes:
        carried: One of its processes moved bytes.
        for_gpu: The rank waits for its GPU, which works: ``busy``, though idle on the processor.
        livelocked: The rank moves, but for long only through functions that were seen before:
            counted as ``busy``.
        circling: The busy rank was seen to go round a loop, not to be in one long call. A starved
            rank must have had as much processor time as it takes to recognise a livelock.
        frames: Newest frames of the main thread, outermost first.
        wait: The known wait of the main thread, or of the thread in which its wait ends.
        stuck: The thread in which the wait ends, if that is not the main thread.
    """

    activity: Activity
    process_activity: ProcessActivity
    frames: tuple[Frame, ...] = ()
    wait: Wait | None = None
    stuck: ThreadStack | None = None
    carried: bool = False
    livelocked: bool = False
    circling: bool = False
    for_gpu: bool = False

    @property
    def stuck_frames(self) -> tuple[Frame, ...]:
        """Frames of the thread in which the wait ends; empty if that is the main thread."""
        return self.stuck.frames if self.stuck is not None else ()


def read_rank_activity(view: RankView) -> RankActivity:
    """Tell what a rank does, by its main thread and the threads that this waits for.

    A rank that waits for other ranks is ``waiting`` whatever processor time it uses: NCCL spins. An
    idle rank whose children work is not idle. If another thread keeps the interpreter lock, the
    main thread cannot return from whatever it waits for.
    """
    away: Activity | None = "missing" if view.pid is None else None
    away = "unheard" if view.unheard_for_s else away
    away = "gone" if view.process_exit is not None else away
    own = view.own_process
    if own is None:
        unseen = ProcessActivity(activity="unseen")
        return RankActivity(activity=away or "unseen", process_activity=unseen)
    read, process = read_process(own), read_process_activity(own)
    keeper = interpreter_lock_keeper(read.complete, view.beat)
    keeper = None if keeper is not None and keeper.tid == own.pid else keeper
    stuck = keeper or read.stuck
    found = RankActivity(
        activity=away or process.activity, process_activity=process, frames=read.frames, stuck=stuck
    )
    if away or process.activity in ("gone", "stopped"):
        return replace(found, frames=()) if away == "missing" else found
    wait = None
    if keeper is None:
        wait = read.wait
        if wait is not None and wait.kind == "last_calls" and read.serves_calls:
            wait = None  # its other threads serve calls
        wait = wait or find_wait(found.stuck_frames)
        if wait is not None and wait.kind == "backward":  # it computes, unless it is idle
            alone = view.beat is not None and view.beat.world_size == 1
            wait = wait if process.activity == "idle" and not alone else None
        if wait is None and process.activity == "busy":
            wait = device_wait(view)
    activity = _of_alive(view, process, wait)
    if activity == "idle" and gpu_works(own) and read.may_wait_for_device:
        return replace(found, activity="busy", wait=wait, for_gpu=True)
    if activity == "moving":
        seen = [read_process_activity(look) for look in view.processes]
        carried = any(process.carried for process in seen)
        woke = process.activity == "moving" and process.stood
        # a child without Python stacks that works, or a GPU, may do new things unseen
        hidden = any(
            not process.stacks and process.activity in ("busy", "moving") for process in seen
        )
        hidden = hidden or any(map(gpu_works, view.processes))
        nothing_new = view.nothing_new_for_s >= LIVELOCK_AFTER_S
        livelocked = not (carried or woke or hidden) and nothing_new
        # a process that sleeps nearly all the time only asks again, whatever its children do
        asks = process.activity == "moving" and process.cpu_share < IDLE_SHARE
        activity = ("idle" if asks else "busy") if livelocked else activity
        found = replace(found, carried=carried, livelocked=livelocked)
    # on a crowded machine, code that is no loop takes longer to show all its functions
    enough = not process.starved or (view.nothing_new_for_s * process.cpu_share >= LIVELOCK_AFTER_S)
    circling = activity == "busy" and enough and _circles(view, process, stuck)
    return replace(found, activity=activity, wait=wait, circling=circling)


def _of_alive(view: RankView, process: ProcessActivity, wait: Wait | None) -> Activity:
    """Only children that could end the rank's wait count; without stacks they may do anything."""
    if wait is not None and wait.kind in FOR_RANKS:
        return "waiting"
    beats = view.beat is not None and view.beat.beats > 0
    if process.activity in ("idle", "busy") and beats and view.silent_for_s < JUST_NOW_S:
        return "moving"
    if process.activity != "idle":
        return process.activity
    awaited = awaited_processes(view) if wait is None else None
    children = [
        read_process_activity(look)
        for look in view.processes
        if look.role != "rank" and (awaited is None or look.pid in awaited)
    ]
    if any(
        activity.activity == "moving"
        or (activity.activity == "busy" and not activity.stacks)
        or (activity.carried and awaited is not None)  # the rank waits for it: it is no service
        for activity in children
    ):
        return "moving"
    return "busy" if any(activity.activity == "busy" for activity in children) else "idle"


def _circles(view: RankView, process: ProcessActivity, stuck: ThreadStack | None) -> bool:
    own = view.own_process
    if own is not None and process.activity in ("busy", "moving"):
        if process.activity == "moving" or (view.goes_round and stuck is None):
            return True
        return read_process(own).in_one_call(stuck.tid if stuck is not None else None) is None
    return any(
        read_process_activity(look).activity in ("busy", "moving")
        and read_process(look).in_one_call() is None
        for look in view.processes
        if look is not own
    )


@remembered
def read_process_activity(look: ProcessLook) -> ProcessActivity:
    """Tell what one process does by itself.

    Returns:
        ``unseen`` with fewer than two usable samples, but for a stack out of a file; else
        ``stopped``, ``gone``, ``moving`` (its stack changes while it uses the processor, or bytes
        flow), ``idle`` (under 2 % of a core, same stack, no bytes) or ``busy`` (the rest: same
        functions).
    """
    usable = [
        moment
        for moment in read_process(look).moments
        if moment.kernel is not None and (look.role == "child" or moment.threads)
    ][-NEWEST:]
    by_state, moved = _without_steps(look), list[bool]()
    carried = starved = stood = False
    # processor time of the process, its main thread, all threads that could end its wait, and the
    # busiest of these; if these are unknown, of the process, or of the main thread alone
    flowed, span_s, cpu_s, main_s, awaited_s, busiest_s = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for earlier, later in pairwise(usable):
        before, after = earlier.kernel, later.kernel
        seconds = later.seconds_since(earlier)
        if seconds <= 0 or before is None or after is None:
            continue
        cpu_share = max(0.0, after.cpu_s - before.cpu_s) / seconds
        shares, awaited = later.shares_since(earlier), awaited_threads(later)
        main_share = shares.get(after.pid, cpu_share)
        of_awaited = [shares.get(tid, 0.0) for tid in awaited or ()]
        span_s += seconds
        cpu_s += cpu_share * seconds
        main_s += main_share * seconds
        awaited_s += (cpu_share if awaited is None else sum(of_awaited)) * seconds
        busiest_s += max(main_share, *of_awaited, 0.0) * seconds
        # ready at both looks, and computing: on a crowded machine the thread gets little time
        first, second = (
            {thread.tid for thread in each.states[1:] if thread.state == "R"}
            for each in (earlier, later)
        )
        ready = first & second if awaited is None else first & second & awaited
        waits_in_queue = later.starved_since(earlier)
        starved = starved or waits_in_queue
        starved = starved or any(shares.get(tid, 0.0) >= IDLE_SHARE for tid in ready)
        computes = waits_in_queue or main_share >= IDLE_SHARE
        now_flowed, carries = _flow(earlier, later, awaited, computes=computes)
        flowed += now_flowed
        carried = carried or carries
        moved.append(carries or _went_on(earlier, later, cpu_share, shares, awaited))
        turns = [thread.turns for thread in (*earlier.states[:1], *later.states[:1])]
        unwoken = len(turns) == 2 and turns[0] is not None and turns[0] == turns[1]
        stood = stood or (unwoken and cpu_share < IDLE_SHARE)
    if not moved:
        return ProcessActivity(activity=by_state or "unseen", samples=min(1, len(usable)))
    does: Activity = "idle"
    # nobody waits for a child that works only now and then (a service)
    if all(moved) if look.role == "child" else any(moved):
        does = "moving"
    elif starved or busiest_s >= IDLE_SHARE * span_s or awaited_s >= BUSY_SHARE * span_s:
        does = "busy"
    return ProcessActivity(
        activity=by_state or does,
        samples=len(moved) + 1,
        span_s=span_s,
        cpu_share=cpu_s / span_s,
        bytes=flowed,
        carried=carried,
        starved=starved and main_s < BUSY_SHARE * span_s,
        stacks=any(moment.sample.stack is not None for moment in usable),
        stood=stood,
    )


def _without_steps(look: ProcessLook) -> Activity | None:
    """Recognise a dead or stopped process by its state; of a stack from a file, whether it ran.

    A debugger or py-spy holds a process in state ``t`` for moments, so two samples must show it.
    """
    letters = [sample.kernel.state for sample in look.samples[-2:] if sample.kernel is not None]
    if letters and letters[-1] in ("Z", "X"):
        return "gone"
    held = letters[-1:] == ["T"] or len(letters) > 1
    if held and all(letter in ("T", "t") for letter in letters):
        return "stopped"
    stacks = [sample.stack for sample in look.samples if sample.kernel is None]
    newest = stacks[-1] if stacks and len(stacks) == len(look.samples) else None
    if newest is None or None in stacks or not newest.from_file:
        return None
    return "busy" if newest.threads and newest.threads[0].active else "idle"


def _went_on(
    earlier: Moment,
    later: Moment,
    cpu_share: float,
    shares: dict[int, float],
    awaited: frozenset[int] | None,
) -> bool:
    """Whether the main thread or a thread in ``awaited`` made progress (None: any thread).

    A busy thread must be in other functions than before, as a loop over the same lines may never
    end. A main thread that hardly computes must be at another line of the user's code: below one
    line that polls, frames alternate.
    """
    stacks = [moment.sample.stack for moment in (earlier, later)]
    if (
        not earlier.threads
        or not later.threads
        or len({stack and stack.source for stack in stacks}) > 1
    ):
        return False  # one source names classes, the other does not

    def key(thread: Thread) -> tuple[int | None, str]:  # the source may lack ids
        return (thread.tid, "" if thread.tid is not None else thread.stack.name)

    def users_part(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        users = users_frames(frames)
        innermost = max(
            (at for at, frame in enumerate(frames) if frame in users), default=len(frames)
        )
        return frames[: innermost + 1]

    main, before = later.threads[0], {key(thread): thread for thread in earlier.threads[1:]}
    for thread in later.threads:
        old = earlier.threads[0] if thread is main else before.get(key(thread))
        if old is None or old.frames == thread.frames:
            continue
        then, now = without_ours(old.frames), without_ours(thread.frames)
        if thread is main and old.words == thread.words != () and now[: len(then)] == then:
            continue  # the same wait as before, below a signal's handler
        share = shares.get(thread.tid or 0, cpu_share if thread is main or not thread.tid else 0.0)
        if share >= (IDLE_SHARE if thread is main else BUSY_SHARE):
            awaits = thread is main or awaited is None or thread.tid in awaited
            if awaits and functions_in(then) != functions_in(now):
                return True
        elif thread is main and users_part(then) != users_part(now):
            return True
    return False


def without_ours(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Drop this package's frames, and standard library frames that only serve them."""
    last = max((at for at, frame in enumerate(frames) if is_ours(frame.file)), default=-1)
    inside = frames[last + 1 :]
    if last >= 0 and all(is_standard(frame.file) for frame in inside):
        inside = ()
    return (*(frame for frame in frames[: last + 1] if not is_ours(frame.file)), *inside)


def _flow(
    earlier: Moment, later: Moment, awaited: frozenset[int] | None, *, computes: bool
) -> tuple[int, bool]:
    """Return the bytes that flowed, and whether they, or storage, bring the main thread forward.

    Counted are the bytes of threads that may end its wait (``awaited``, None for all) and of native
    threads. Where the kernel does not count by thread, the process's bytes count, which include
    what programs read that a thread starts.

    At a connection only the bytes that connections carried count, if the kernel tells them: our own
    threads read more than a slow download. In a read or write call, what that thread moved counts.

    Deleting files moves no bytes, but makes many short waits for storage (state D). On some virtual
    disks such a thread runs without processor time, which no computing loop does.
    """
    before, after = earlier.kernel, later.kernel
    if before is None or after is None:
        return 0, False
    then, now = (
        {
            thread.tid: thread.moved_bytes
            for thread in each.threads
            if thread.moved_bytes is not None
        }
        for each in (before, after)
    )
    if any(target.kind == "process" or target.holders for _, target in later.targets):
        awaited = None  # another process may wait for any of these threads
    of_python = {thread.tid for thread in later.threads}
    counted = {
        tid for tid in {*then, *now} if awaited is None or tid in awaited or tid not in of_python
    }
    by_thread = counted <= now.keys() and all(
        each.threads and not each.threads_left_out and len(counts) == len(each.threads)
        for each, counts in ((before, then), (after, now))
    )
    network = before.network_bytes, after.network_bytes
    files = [(before.read_bytes, after.read_bytes), (before.written_bytes, after.written_bytes)]
    pairs = [(then.get(tid, 0), now[tid]) for tid in counted] if by_thread else files
    elsewhere, by_network = (
        sum(max(0, new - old) for old, new in counts if old is not None and new is not None)
        for counts in (pairs, [network])
    )
    flowed = elsewhere + by_network
    if not earlier.states or not later.states:
        return flowed, flowed > MANY_BYTES
    old, new = earlier.states[0], later.states[0]
    if None not in network and _asks_again(old, new, by_network):
        # a server in the same process, such as torch's store, reads the questions from its sockets
        return flowed, elsewhere - by_network > MANY_BYTES
    if flowed > MANY_BYTES or _connections_carried(earlier, later):
        return flowed, True
    seconds = later.seconds_since(earlier)
    span_s = max(seconds, SHORTEST_FLOW_S)
    moved = now[new.tid] - then[old.tid] if old.tid in then and new.tid in now else flowed
    if any(target.kind == "socket" for target in new.waits_for):
        moved = moved if None in network else by_network
        carried = moved > DOWNLOAD_RATE * span_s
    else:
        carried = new.syscall in TRANSFER_CALLS and moved > TRANSFER_RATE * span_s
    letters = {old.state, new.state}
    if letters <= {"D", "R"} and ("D" in letters or not computes):
        turns = (new.turns or 0) - old.turns if old.turns is not None else 0
        carried = carried or turns > STORAGE_ANSWERS * seconds
    return flowed, carried


def _asks_again(old: ThreadState, new: ThreadState, moved: int) -> bool:
    """Whether the main thread sleeps between requests so small that they bring nothing.

    The bytes of a retry are no progress; otherwise no retry would ever be reported.
    """
    asleep = [
        bool(state.waits_for)
        and all(target.kind == "time" and target.call != "futex" for target in state.waits_for)
        for state in (old, new)
    ]
    # it may also be caught at a question, or on the processor
    asking = [
        state.state == "R" or any(target.kind == "socket" for target in state.waits_for)
        for state in (old, new)
    ]
    if not any(asleep) or not all(
        sleeps or other for sleeps, other in zip(asleep, asking, strict=True)
    ):
        return False
    if old.turns is None or new.turns is None:
        return False
    return moved < QUESTION * max(1, new.turns - old.turns)


def _connections_carried(earlier: Moment, later: Moment) -> bool:
    """Whether any byte moved at a connection on which the main thread's wait rests.

    A thread that waits at other connections than before has had its answer. The kernel may list
    only some sockets, so only those that are known of both samples are compared.
    """
    then, now = (
        {
            (tid, target.connection): target.carried_bytes
            for tid, target in each.targets
            if target.kind == "socket"
        }
        for each in (earlier, later)
    )
    for tid in {tid for tid, _ in then} & {tid for tid, _ in now}:
        before, after = (
            {connection for by, connection in each if by == tid} for each in (then, now)
        )
        if before != after and None not in before | after:
            return True
        if any(
            None not in (then[tid, connection], now[tid, connection])
            and then[tid, connection] != now[tid, connection]
            for connection in before & after
        ):
            return True
    return False


def gpu_works(look: ProcessLook) -> bool:
    """Whether a GPU worked for the process, or for anybody if the driver cannot say for whom."""
    shares = (
        gpu.own_busy_percent if gpu.own_busy_percent is not None else gpu.busy_percent
        for sample in look.samples[-NEWEST:]
        for gpu in sample.gpus
    )
    return any(share is not None and share >= BUSY_PERCENT for share in shares)


def describe_gpus(look: ProcessLook) -> Iterator[str]:
    """Describe the GPUs of the newest sample that shows any, one sentence each."""
    for gpu in next((sample.gpus for sample in reversed(look.samples) if sample.gpus), ()):
        name, busy = f"GPU {gpu.index}", gpu.busy_percent
        facts = [f"{name}: {busy} % busy" if busy is not None else f"{name}: its use is unknown"]
        if gpu.own_busy_percent is not None:
            facts.append(f"{gpu.own_busy_percent} % with this process")
        if gpu.memory_used_bytes is not None and gpu.memory_bytes:
            full = gpu.memory_used_bytes >= NEARLY_FULL * gpu.memory_bytes
            used, all_of_it = gpu.memory_used_bytes / GIB, gpu.memory_bytes / GIB
            nearly = ", nearly full" if full else ""
            facts.append(f"{used:.0f} of {all_of_it:.0f} GiB in use{nearly}")
        if gpu.clock_mhz is not None and gpu.full_clock_mhz is not None:
            facts.append(f"{gpu.clock_mhz} of {gpu.full_clock_mhz} MHz")
        if gpu.power_w is not None:
            facts.append(f"{gpu.power_w:.0f} W")
        if gpu.slowed_by:
            facts.append(f"slowed down ({', '.join(gpu.slowed_by)})")
        if gpu.uncorrected_errors:
            facts.append(f"{gpu.uncorrected_errors} uncorrected memory errors")
        yield ", ".join(facts)
