"""What a process does, told by mechanism from its samples: no name of any library decides here."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.gather.stack_groups import latest_frames
from lightning_hangcheck.model.evidence import Frame, ThreadStack
from lightning_hangcheck.reading.activity.livelock import in_one_call
from lightning_hangcheck.reading.activity.process_activity import (
    BUSY_SHARE,
    IDLE_SHARE,
    Step,
    compare,
    gpu_works,
)
from lightning_hangcheck.reading.records.device_waits import device_wait
from lightning_hangcheck.reading.waits.kernel_targets import awaited_processes
from lightning_hangcheck.reading.waits.remembered import remembered
from lightning_hangcheck.reading.waits.stuck_thread import lock_keeper, stuck_thread
from lightning_hangcheck.reading.waits.torch_waits import FOR_RANKS, Wait, find_wait, of_own_process
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import ProcessLook, Sample

Activity = Literal[
    "moving", "busy", "idle", "waiting", "stopped", "gone", "missing", "unseen", "unheard"
]
WINDOW = 3
"""Newest samples that count: older ones may be from before the rank got stuck."""
JUST_NOW_S = 1.0
"""A rank whose page showed progress within this time advances, whatever the samples caught."""
LIVELOCK_AFTER_S = 6.0
"""Time after which moving through functions that were all seen before is taken for a livelock. The
looks at 2, 3 and 4 s of silence meet most functions of a loop, so that at 10 s it is known."""


class ProcessActivity(Struct, frozen=True, kw_only=True):
    """What the newest samples of one process show.

    Attributes:
        samples: How many of them could be used.
        span_s: Seconds from the first to the last of these.
        cpu_share: Processor time of all threads over that span, in cores.
        bytes: Read and written over that span.
        carried: Bytes flowed, or storage answered: no loop of mere computing does that.
        starved: It was ready, and others had the processor: it ran too little to be known.
        stacks: Whether Python stacks were among them.
        stood: From one of them to the next it stood still, and was not even woken.
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
    """What a rank does, all its processes considered.

    Attributes:
        carried: One of its processes moved bytes while it moved.
        for_gpu: It waits for its GPU, which works: ``busy``, though idle on the processor.
        livelocked: It moves, but for long only through functions in which it was before: ``busy``.
        circling: What is busy was seen to go round, and not in one long call.
        frames: Newest frames of its main thread, outermost first.
        wait: The known wait in which that thread stands, or the one in which its wait ends.
        stuck: The thread in which its wait ends, where that is another.
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
        """Frames of the thread in which its wait ends; none where that is the main thread."""
        return self.stuck.frames if self.stuck is not None else ()


def read_rank_activity(view: RankView) -> RankActivity:
    """Tell what a rank does: its main thread, and the threads for which that waits.

    A rank that waits for other ranks is ``waiting`` whatever processor time it uses: NCCL spins,
    and so does CUDA.
    One that is idle while its children work, works.
    """
    own = view.own_process
    process = read_process_activity(own) if own is not None else ProcessActivity(activity="unseen")
    frames = of_own_process(latest_frames(own)) if own is not None else ()
    keeper = _other_keeper(view)
    stuck = keeper or (stuck_thread(own) if own is not None else None)
    found = RankActivity(
        activity=process.activity, process_activity=process, frames=frames, stuck=stuck
    )
    if view.process_exit is not None:
        return replace(found, activity="gone")
    if view.unheard_for_s:
        return replace(found, activity="unheard")
    if view.pid is None:
        return replace(found, activity="missing", frames=())
    if process.activity in ("gone", "stopped"):
        return found
    told = find_wait(frames) or (find_wait(stuck.frames) if stuck is not None else None)
    wait = None if keeper is not None else _effective(told, process, view)
    if wait is None and keeper is None and process.activity == "busy":
        wait = device_wait(view)
    activity = _of_alive(view, process, wait)
    if activity == "idle" and own is not None and gpu_works(own):
        return replace(found, activity="busy", wait=wait, for_gpu=True)
    if activity == "moving":
        seen = [read_process_activity(look) for look in view.processes]
        carried = any(one.carried for one in seen)
        woke = process.activity == "moving" and process.stood
        livelocked = not (carried or woke) and _livelocked(view, seen)
        activity = "busy" if livelocked else activity
        found = replace(found, carried=carried, livelocked=livelocked)
    circling = activity == "busy" and not process.starved and _circles(view, process, stuck)
    return replace(found, activity=activity, wait=wait, circling=circling)


def has_left(view: RankView, found: RankActivity, now_ns: int) -> bool:
    """Whether a rank that was seen to wait advanced since then, by what it told itself.

    Args:
        view: The rank.
        found: What it does by its samples.
        now_ns: When its case was taken, as `Case` has it.
    """
    own = view.own_process
    if own is None or not own.samples or found.activity not in ("idle", "busy", "waiting"):
        return False
    return view.silent_for_s * NANOSECONDS < now_ns - own.samples[-1].taken_ns


@remembered
def read_process_activity(look: ProcessLook) -> ProcessActivity:
    """Tell what one process does by itself.

    Returns:
        ``unseen`` with fewer than two usable samples; else ``stopped``, ``gone``, ``moving``
        (its stack changes while it uses the processor, or bytes flow), ``idle`` (under 2 % of a
        core, same stack, no bytes) or ``busy`` (the rest: same functions).
    """
    ended = _by_state(look.samples)
    usable = [sample for sample in look.samples if _usable(sample, look.role)][-WINDOW:]
    steps = [step for pair in pairwise(usable) if (step := compare(*pair)) is not None]
    if not steps:
        return ProcessActivity(activity=ended or "unseen", samples=min(1, len(usable)))
    main_share = _mean(steps, lambda step: step.main_share)
    return ProcessActivity(
        activity=ended or _by_steps(steps, look.role),
        samples=len(steps) + 1,
        span_s=sum(step.seconds for step in steps),
        cpu_share=_mean(steps, lambda step: step.cpu_share),
        bytes=sum(step.bytes for step in steps),
        carried=any(step.carried for step in steps),
        starved=main_share < BUSY_SHARE and any(step.starved for step in steps),
        stacks=any(sample.stack is not None for sample in usable),
        stood=any(step.stood for step in steps),
    )


def _other_keeper(view: RankView) -> ThreadStack | None:
    """The thread, other than the main one, that keeps the interpreter lock.

    The main thread cannot come back from whatever it waits for, even once that has ended.
    """
    own = view.own_process
    keeper = lock_keeper(own, view.beat) if own is not None else None
    return keeper if own is not None and keeper is not None and keeper.tid != own.pid else None


def _effective(wait: Wait | None, process: ProcessActivity, view: RankView) -> Wait | None:
    """Drop a wait that the frames alone cannot prove: backward computes, unless it is idle."""
    if wait is None or wait.kind != "backward":
        return wait
    alone = view.beat is not None and view.beat.world_size == 1
    return wait if process.activity == "idle" and not alone else None


def _of_alive(view: RankView, process: ProcessActivity, wait: Wait | None) -> Activity:
    if wait is not None and wait.kind in FOR_RANKS:
        return "waiting"
    own = process.activity
    beats = view.beat is not None and view.beat.beats > 0
    if own in ("idle", "busy") and beats and view.silent_for_s < JUST_NOW_S:
        return "moving"
    if own != "idle":
        return own
    return _helped(view, None if wait is not None else awaited_processes(view)) or own


def _circles(view: RankView, process: ProcessActivity, stuck: ThreadStack | None) -> bool:
    """Whether a busy rank, or what works for it, goes round and round, and not in one long call.

    Args:
        view: The rank.
        process: What its own process does.
        stuck: The thread in which that process's wait ends, where that is not the main one.
    """
    own = view.own_process
    if own is not None and process.activity in ("busy", "moving"):
        if process.activity == "moving" or (view.goes_round and stuck is None):
            return True
        return in_one_call(own, stuck.tid if stuck is not None else None) is None
    children = [one for one in view.processes if one is not own]
    busy = [one for one in children if read_process_activity(one).activity in ("busy", "moving")]
    return any(in_one_call(one) is None for one in busy)


def _livelocked(view: RankView, seen: Sequence[ProcessActivity]) -> bool:
    """Whether a rank that moves only goes round: for long it did nothing that it had not done.

    A child without Python stacks that works, or a GPU, may do new things all the time: nobody sees
    them.
    """
    hidden = any(not one.stacks and one.activity in ("busy", "moving") for one in seen)
    hidden = hidden or any(gpu_works(look) for look in view.processes)
    return view.nothing_new_for_s >= LIVELOCK_AFTER_S and not hidden


def _helped(view: RankView, awaited: frozenset[int] | None) -> Activity | None:
    """What the rank's children do for it, if they do anything.

    A child without Python stacks that uses the processor may be anything, so it counts as moving.

    Args:
        view: The rank.
        awaited: Children that could end its wait, None for any; all others excuse nobody.
    """
    seen = [
        read_process_activity(look)
        for look in view.processes
        if look.role != "rank" and (awaited is None or look.pid in awaited)
    ]
    kinds = {
        "moving" if one.activity == "busy" and not one.stacks else one.activity for one in seen
    }
    if "moving" in kinds:
        return "moving"
    return "busy" if "busy" in kinds else None


def _usable(sample: Sample, role: str) -> bool:
    if sample.kernel is None:
        return False
    return role == "child" or (sample.stack is not None and bool(sample.stack.threads))


def _by_state(samples: Sequence[Sample]) -> Activity | None:
    """Tell a dead or stopped process by the kernel's letter.

    A debugger, or another py-spy, holds a process in state ``t`` for a moment: that counts only if
    two samples saw it.
    """
    letters = [sample.kernel.state for sample in samples[-2:] if sample.kernel is not None]
    if not letters:
        return None
    if letters[-1] in ("Z", "X"):
        return "gone"
    held = all(letter in ("T", "t") for letter in letters)
    return "stopped" if held and (letters[-1] == "T" or len(letters) > 1) else None


def _by_steps(steps: Sequence[Step], role: str) -> Activity:
    """Judge by steps. A child that only works now and then (a service) is nobody's to wait for."""
    moved = [step.moved for step in steps]
    if all(moved) if role == "child" else any(moved):
        return "moving"
    share = _mean(steps, lambda step: step.awaited_share)
    works = _mean(steps, lambda step: step.busiest_share) >= IDLE_SHARE or any(
        step.starved for step in steps
    )
    return "busy" if works or share >= BUSY_SHARE else "idle"


def _mean(steps: Sequence[Step], share: Callable[[Step], float]) -> float:
    """The share over all the time that the steps took."""
    return sum(share(step) * step.seconds for step in steps) / sum(step.seconds for step in steps)
