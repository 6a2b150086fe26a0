"""What shows that a rank gets on: bytes of its threads, its GPU, its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, MAIN, NOW_NS, SECOND, job, rank, sample, user, waiting_for
from flights import AT_ITEM, on_device, spinning
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.activity import read_process_activity, read_rank_activity
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.evidence import GpuState, ProcessLook, ThreadStack, ThreadState

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import Sample

PID = 100
HELPER = 300
FULL_PIPE = waiting_for("pipe", "write", "pipe:[9]", 700)
FOR_CHILD = waiting_for("process", "wait4", "700")
REMOTE = waiting_for("socket", "recvfrom", "10.0.0.1:443")
MANY = 1_000_000


def seen(number: int, *, main: int, helper: int | None, **state: Any) -> Sample:
    """A look after so many seconds: each of main thread and helper moved so many bytes a second.

    The process moved a million a second: its count has what its children read.
    """
    state = {"state": "S", **state}
    one = sample(IN_LOAD, NOW_NS + number * SECOND, pid=PID, cpu_s=0, read_bytes=0, **state)
    assert one.kernel is not None
    assert one.stack is not None
    threads = [replace(thread, moved_bytes=0) for thread in one.kernel.threads]
    threads[0] = replace(threads[0], moved_bytes=number * main)
    if helper is not None:
        moved = number * helper
        threads.append(ThreadState(tid=HELPER, state="S", cpu_s=0, moved_bytes=moved))
    stacks = (*one.stack.threads, ThreadStack(tid=HELPER, frames=(user("monitor", 61),)))
    kernel = replace(one.kernel, threads=tuple(threads), read_bytes=number * MANY)
    return replace(one, kernel=kernel, stack=replace(one.stack, threads=stacks))


def activity(*, main: int = 0, helper: int | None = 0, **state: Any) -> str:
    samples = tuple(seen(number, main=main, helper=helper, **state) for number in range(3))
    return read_process_activity(ProcessLook(pid=PID, role="rank", samples=samples)).activity


@pytest.mark.parametrize("syscall", [1, 35])
def test_what_children_read_is_nobodys_progress(syscall: int) -> None:
    """A thread that runs a program every second, beside a main thread in write or in a sleep."""
    assert activity(syscall=syscall) == "idle"


def test_what_the_main_thread_writes_is_progress() -> None:
    assert activity(main=5_000, syscall=1, **FULL_PIPE) == "moving"


def test_a_helper_counts_where_it_could_end_the_wait() -> None:
    """Another process of this machine may wait for what it gives; a remote end does not."""
    for waits in (FULL_PIPE, FOR_CHILD):
        assert activity(helper=MANY, **waits) == "moving"
        assert activity(helper=100, **waits) == "idle"
    assert activity(helper=MANY, **REMOTE) == "idle"


def test_where_a_thread_has_ended_or_is_not_counted_the_process_counts() -> None:
    gone = [seen(0, main=0, helper=0), seen(1, main=0, helper=None), seen(2, main=0, helper=None)]
    look = ProcessLook(pid=PID, role="rank", samples=tuple(gone))
    assert read_process_activity(look).activity == "moving"
    uncounted = [
        replace(
            one,
            kernel=replace(
                one.kernel, threads=tuple(replace(t, moved_bytes=None) for t in one.kernel.threads)
            ),
        )
        for one in (seen(number, main=0, helper=0) for number in range(3))
        if one.kernel is not None
    ]
    look = ProcessLook(pid=PID, role="rank", samples=tuple(uncounted))
    assert read_process_activity(look).activity == "moving"


GIB = 1 << 30
WAITS = rank(0, IN_ALL_REDUCE)


def with_gpu(view: RankView, **told: Any) -> RankView:
    """The rank with a GPU in every sample."""
    own, *others = view.processes
    gpu = GpuState(index=3, **told)
    samples = tuple(replace(one, gpus=(gpu,)) for one in own.samples)
    return replace(view, processes=(replace(own, samples=samples), *others))


def test_a_rank_that_waits_for_its_busy_gpu_gets_the_patience_of_a_busy_one() -> None:
    """Idle for 31 s would be a hang."""
    verdict = judge(job(WAITS, with_gpu(rank(1, IN_LOAD), busy_percent=100)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("suspect", (1,), "spinning")
    assert (
        "makes no progress in load (demo/train.py:41): waiting for a busy GPU for 31 s"
        in verdict.summary
    )
    assert "CUDA_LAUNCH_BLOCKING=1" in verdict.remedies[0].in_words


def test_a_kernel_that_never_ends_is_a_hang_once_the_ranks_pace_is_exceeded() -> None:
    endless = rank(1, IN_LOAD, silent=121.0, pace=Pace(longest_pause_s=0.5, pauses=9))
    verdict = judge(job(WAITS, with_gpu(endless, busy_percent=100)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "spinning")


@pytest.mark.parametrize(
    "told", [{"busy_percent": 0}, {"busy_percent": 100, "own_busy_percent": 0}, {}]
)
def test_a_gpu_that_does_not_work_for_the_rank_changes_nothing(told: dict[str, Any]) -> None:
    verdict = judge(job(WAITS, with_gpu(rank(1, IN_LOAD), **told)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "rank_stalled")


def test_the_gpu_of_the_culprit_is_among_the_facts() -> None:
    told = {
        "busy_percent": 100,
        "own_busy_percent": 97,
        "memory_used_bytes": 79 * GIB,
        "memory_bytes": 80 * GIB,
        "clock_mhz": 1200,
        "full_clock_mhz": 1980,
        "power_w": 412.4,
        "slowed_by": ("thermal",),
        "uncorrected_errors": 2,
    }
    verdict = judge(job(WAITS, with_gpu(rank(1, IN_LOAD), **told)))
    (fact,) = [item for item in verdict.evidence if item.kind == "gpu"]
    assert fact.rank == 1
    assert fact.text == (
        "GPU 3: 100 % busy, 97 % with this process, 79 of 80 GiB in use, nearly full, "
        "1200 of 1980 MHz, 412 W, slowed down (thermal), 2 uncorrected memory errors"
    )


ELSEWHERE = (MAIN, user("log_loss", 31))
CHECKPOINT_THREAD = ThreadStack(tid=9, name="checkpoint", frames=IN_ALL_REDUCE)


def with_main(view: RankView, *others: ThreadStack, owns_gil: bool = False) -> RankView:
    """The rank, its main thread with the lock or without, beside other threads."""
    (own,) = view.processes
    samples = []
    for one in own.samples:
        assert one.stack is not None
        main = replace(one.stack.threads[0], owns_gil=owns_gil)
        samples.append(replace(one, stack=replace(one.stack, threads=(main, *others))))
    return replace(view, processes=(replace(own, samples=tuple(samples)),))


def test_a_rank_that_spins_for_its_device_waits_for_the_others() -> None:
    seen = read_rank_activity(on_device(spinning(0), "all_reduce", "broadcast", first=7))
    assert seen.activity == "waiting"
    assert seen.wait is not None
    assert (seen.wait.kind, seen.wait.name) == ("device", "all_reduce")


@pytest.mark.parametrize(
    "view",
    [
        spinning(0),
        on_device(spinning(0), "all_reduce", on_device=False),
        with_main(on_device(spinning(0), "all_reduce"), owns_gil=True),
        with_main(on_device(spinning(0), "all_reduce"), CHECKPOINT_THREAD),
        on_device(spinning(0, AT_ITEM, ELSEWHERE, AT_ITEM), "all_reduce"),
    ],
    ids=["no record", "gloo", "runs Python", "another thread's", "at several lines"],
)
def test_a_rank_that_computes_is_none_that_waits(view: RankView) -> None:
    assert read_rank_activity(view).activity == "busy"


def test_those_that_run_ahead_are_victims_of_the_one_that_does_not_come() -> None:
    ahead = [on_device(spinning(number), "all_reduce", "all_reduce", first=7) for number in (0, 1)]
    verdict = judge(job(*ahead, on_device(rank(2, IN_LOAD), first=7)))
    assert (verdict.culprits, verdict.victims) == ((2,), (0, 1))
    assert verdict.cause == "rank_stalled"


def test_the_line_of_a_rank_that_is_ahead_tells_nothing_of_where_it_parted() -> None:
    """Rank 0 stands under a test of the rank, and is right; rank 2 alone has another operation."""
    ahead = [on_device(spinning(number), "all_reduce", first=7) for number in (0, 1)]
    verdict = judge(job(*ahead, on_device(spinning(2), "broadcast", first=7)))
    assert verdict.verdict == "hang"
    assert verdict.culprits == (2,)
