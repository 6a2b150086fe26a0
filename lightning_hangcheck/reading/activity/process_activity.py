"""Two samples of one process, compared: what did it do between them, and did its GPU work?

What is idle on the CPU but waits for a busy GPU is not idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.naming.code_owner import is_ours, is_standard, is_users
from lightning_hangcheck.reading.activity.moved_bytes import bytes_moved, make_way
from lightning_hangcheck.reading.waits.kernel_targets import awaited_threads
from lightning_hangcheck.reading.waits.wait_chain import is_our_thread
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.evidence import (
        Frame,
        GpuState,
        ProcessLook,
        ProcessState,
        Sample,
        ThreadStack,
        ThreadState,
    )

BUSY_SHARE = 0.20
IDLE_SHARE = 0.02
"""Shares of one core. The kernel counts in ticks of 10 ms, 0.01 of a second; a page's pulse thread
and a look with py-spy stay below 0.01 together."""
STORAGE_ANSWERS = 20
"""Times a second that a thread which waits for storage is woken above which it gets on. A call that
hangs is woken never, or once in many seconds to try again."""
STARVED_SHARE = 0.5
"""Of its time, which a thread that computes on a crowded machine spends in the queue for a
processor; one that storage wakes is in it for moments."""
BUSY_PERCENT = 5
"""A GPU without work shows 0, one that draws somebody's screen up to 3."""
NEARLY_FULL = 0.95
GIB = 1 << 30
NEWEST = 3


class Step(Struct, frozen=True, kw_only=True):
    """What a process did between two samples.

    Attributes:
        seconds: Between the samples.
        cpu_share: Processor time of all its threads, in cores.
        main_share: The same of its main thread; of the process where threads are not known.
        starved: Its main thread was ready for most of the time, and got no processor, or another
            thread that could end its wait computes, and gets little.
        awaited_share: The same of the threads that could end the main thread's wait, itself
            included: of the process where any of its threads could.
        busiest_share: The highest of the main thread and, where it is known which threads could end
            its wait, of one of these.
        bytes: Read, written, and carried by connections, by threads that could end the main one's
            wait where each thread's share is known; 0 where not permitted to know.
        carried: Bytes flowed, or storage answered call after call.
        moved: It made way: it carried, or its stack changed while it used the processor.
        stood: Its main thread did not run once, and its other threads hardly.
    """

    seconds: float
    cpu_share: float
    main_share: float
    starved: bool
    awaited_share: float
    busiest_share: float
    bytes: int
    carried: bool
    moved: bool
    stood: bool


def compare(earlier: Sample, later: Sample) -> Step | None:
    """Compare two samples; None where no time passed or one lacks its kernel state."""
    seconds = (later.taken_ns - earlier.taken_ns) / NANOSECONDS
    if seconds <= 0 or earlier.kernel is None or later.kernel is None:
        return None
    before, after = earlier.kernel, later.kernel
    cpu_share = max(0.0, after.cpu_s - before.cpu_s) / seconds
    threads = thread_shares(earlier, later)
    main_share = threads.get(after.pid, cpu_share)
    awaited = awaited_threads(later)
    awaited_share = cpu_share if awaited is None else sum(threads.get(tid, 0.0) for tid in awaited)
    flowed, starved = bytes_moved(earlier, later, awaited), is_starved(before, after, seconds)
    carried = make_way(earlier, later, flowed) or _storage_answers(
        before, after, seconds, computes=starved or main_share >= IDLE_SHARE
    )
    return Step(
        seconds=seconds,
        cpu_share=cpu_share,
        main_share=main_share,
        starved=starved or _ready(before, after, threads, awaited),
        awaited_share=awaited_share,
        busiest_share=max([main_share, *(threads.get(tid, 0.0) for tid in awaited or ())]),
        bytes=flowed,
        carried=carried,
        moved=carried
        or _main_moved(earlier, later, main_share)
        or _helper_moved(earlier, later, threads, cpu_share, awaited),
        stood=cpu_share < IDLE_SHARE and _did_not_run(before, after),
    )


def gpu_works(look: ProcessLook) -> bool:
    """Whether a GPU worked for the process in one of the newest samples.

    Where the driver does not tell processes apart, any work on a GPU that it uses counts.
    """
    return any(_works(gpu) for sample in look.samples[-NEWEST:] for gpu in sample.gpus)


def describe_gpus(look: ProcessLook) -> Iterator[str]:
    """Describe the GPUs of the newest sample that shows any, one sentence each."""
    newest: Sequence[GpuState] = next(
        (sample.gpus for sample in reversed(look.samples) if sample.gpus), ()
    )
    return (", ".join(_facts(gpu)) for gpu in newest)


def without_ours(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Drop this package's frames, and what only the interpreter's library does on their behalf."""
    last = max((i for i, frame in enumerate(frames) if is_ours(frame.file)), default=None)
    if last is None:
        return tuple(frames)
    inside = frames[last + 1 :]
    kept = () if all(is_standard(frame.file) for frame in inside) else inside
    return (*(frame for frame in frames[:last] if not is_ours(frame.file)), *kept)


def _storage_answers(
    before: ProcessState, after: ProcessState, seconds: float, *, computes: bool
) -> bool:
    """Whether the main thread makes many short waits for storage: deleting files moves no bytes.

    A thread that polls sleeps between its questions (state S). Storage lets it wait in state D;
    some virtual disks let it run without processor time, which no loop that computes does.
    """
    if not before.threads or not after.threads:
        return False
    first, second = before.threads[0], after.threads[0]
    states = {first.state, second.state}
    if not (states <= {"D", "R"} and ("D" in states or not computes)):
        return False
    if first.turns is None or second.turns is None:
        return False
    return second.turns - first.turns > STORAGE_ANSWERS * seconds


def is_starved(before: ProcessState, after: ProcessState, seconds: float) -> bool:
    """Whether the main thread had work to do, but others had the processor."""
    first, second = before.threads[:1], after.threads[:1]
    if not first or not second or first[0].queued_s is None or second[0].queued_s is None:
        return False
    return second[0].queued_s - first[0].queued_s > STARVED_SHARE * seconds


def _did_not_run(before: ProcessState, after: ProcessState) -> bool:
    """Whether the kernel never gave the main thread a processor, which it counts."""
    first, second = before.threads[:1], after.threads[:1]
    return (
        bool(first and second)
        and first[0].turns is not None is not second[0].turns
        and (first[0].turns == second[0].turns)
    )


def _ready(
    before: ProcessState,
    after: ProcessState,
    shares: dict[int, float],
    awaited: frozenset[int] | None,
) -> bool:
    """Whether a thread that could end the wait was ready at both looks, and computes.

    On a crowded machine it gets a small share of a processor. One that waits, and only wakes now
    and then, is not found ready twice.
    """
    ready = {one.tid for one in before.threads[1:] if one.state == "R"}
    return any(
        one.state == "R" and one.tid in ready and shares.get(one.tid, 0.0) >= IDLE_SHARE
        for one in after.threads[1:]
        if awaited is None or one.tid in awaited
    )


def _main_moved(earlier: Sample, later: Sample, share: float) -> bool:
    """Whether the main thread went on.

    Busy, it must be in other functions: a loop that goes over its own lines may never end. Hardly
    busy, it must be at another line of the user's code: one line that polls alternates below it.
    """
    first, second = _main(earlier), _main(later)
    if first is None or second is None or _source(earlier) != _source(later):
        return False  # one source names classes, the other does not
    before, after = without_ours(first.frames), without_ours(second.frames)
    if share >= IDLE_SHARE:
        return _functions(before) != _functions(after)
    return before != after and _users_part(before) != _users_part(after)


def _helper_moved(
    earlier: Sample,
    later: Sample,
    shares: dict[int, float],
    cpu_share: float,
    awaited: frozenset[int] | None,
) -> bool:
    """Whether another thread that could end the main one's wait works.

    It is busy, and in other functions than before. One that is busy with something else excuses
    nobody: only ``awaited`` threads count, all where that is None.
    """
    if cpu_share < BUSY_SHARE:
        return False
    before = {_key(thread): thread for thread in _helpers(earlier)}
    for thread in _helpers(later):
        if awaited is not None and thread.tid not in awaited:
            continue
        old = before.get(_key(thread))
        share = cpu_share if thread.tid is None else shares.get(thread.tid, 0.0)
        if (
            old is not None
            and share >= BUSY_SHARE
            and _functions(old.frames) != _functions(thread.frames)
        ):
            return True
    return False


def _key(thread: ThreadStack) -> tuple[int | None, str]:
    """What names a thread: its id, or what stands for it where the source does not tell."""
    return (thread.tid, "" if thread.tid is not None else thread.name)


def _users_part(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames down to the innermost of the user's own; all where none is."""
    positions = (i for i, frame in enumerate(frames) if is_users(frame.file))
    return frames[: max(positions, default=len(frames)) + 1]


def _functions(frames: Sequence[Frame]) -> list[tuple[str, str]]:
    return [(frame.function, frame.file) for frame in frames]


def thread_shares(earlier: Sample, later: Sample) -> dict[int, float]:
    """Return the cores that each thread used between two samples, by its kernel id."""
    seconds = (later.taken_ns - earlier.taken_ns) / NANOSECONDS
    if seconds <= 0 or earlier.kernel is None or later.kernel is None:
        return {}
    old: dict[int, ThreadState] = {thread.tid: thread for thread in earlier.kernel.threads}
    return {
        thread.tid: max(0.0, thread.cpu_s - old[thread.tid].cpu_s) / seconds
        for thread in later.kernel.threads
        if thread.tid in old
    }


def _main(sample: Sample) -> ThreadStack | None:
    threads = sample.stack.threads if sample.stack is not None else ()
    return threads[0] if threads else None


def _source(sample: Sample) -> str:
    return sample.stack.source if sample.stack is not None else ""


def _helpers(sample: Sample) -> Iterator[ThreadStack]:
    """All threads but the main one and those of this package."""
    threads = sample.stack.threads if sample.stack is not None else ()
    return (thread for thread in threads[1:] if not is_our_thread(thread))


def _works(gpu: GpuState) -> bool:
    own = gpu.own_busy_percent if gpu.own_busy_percent is not None else gpu.busy_percent
    return own is not None and own >= BUSY_PERCENT


def _facts(gpu: GpuState) -> Iterator[str]:
    name = f"GPU {gpu.index}"
    if gpu.busy_percent is None:
        yield f"{name}: how busy it is, is not told"
    else:
        yield f"{name}: {gpu.busy_percent} % busy"
    if gpu.own_busy_percent is not None:
        yield f"{gpu.own_busy_percent} % with this process"
    if gpu.memory_used_bytes is not None and gpu.memory_bytes:
        full = gpu.memory_used_bytes >= NEARLY_FULL * gpu.memory_bytes
        used, all_of_it = gpu.memory_used_bytes / GIB, gpu.memory_bytes / GIB
        yield f"{used:.0f} of {all_of_it:.0f} GiB in use" + (", nearly full" if full else "")
    if gpu.clock_mhz is not None and gpu.full_clock_mhz is not None:
        yield f"{gpu.clock_mhz} of {gpu.full_clock_mhz} MHz"
    if gpu.power_w is not None:
        yield f"{gpu.power_w:.0f} W"
    if gpu.slowed_by:
        yield f"slowed down ({', '.join(gpu.slowed_by)})"
    if gpu.uncorrected_errors:
        yield f"{gpu.uncorrected_errors} uncorrected memory errors"
