"""What shows that a rank gets on, and loops that get nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    MAIN,
    NOW_NS,
    SECOND,
    STDLIB,
    beside,
    changed_rank,
    job,
    look,
    rank,
    user,
    waiting_for,
    with_kernel,
    with_main,
    worker,
)
from flights import AT_ITEM, on_device, spinning
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.activity import read_process_activity, read_rank_activity
from lightning_hangcheck.judge.livelock import FunctionsMet, with_what_was_seen
from lightning_hangcheck.judge.phase_of_life import rare_place
from lightning_hangcheck.judge.processes import read_process
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Pace, RankView
from lightning_hangcheck.model.evidence import (
    Frame,
    GpuState,
    ProcessLook,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
    WaitTarget,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.model.slugs import Phase

HELPER = 300
FULL_PIPE = waiting_for("pipe", "write", "pipe:[9]", 700)
FOR_CHILD = waiting_for("process", "wait4", "700")
REMOTE = waiting_for("socket", "recvfrom", "10.0.0.1:443")
MANY = 1_000_000


def activity(*, main: int = 0, helper: int = 0, ends: bool = False, **state: Any) -> str:
    """What a rank does whose main thread and helper move so many bytes a look.

    The process moves a million a second: its count has what its children read. A negative number
    of the helper's is one that nobody counts; one that ends is there at the first look alone.
    """
    view = rank(0, IN_LOAD, bytes_s=MANY, **state)
    view = beside(view, (user("monitor", 61),), tid=HELPER)

    def moved(number: int, kernel: ProcessState) -> tuple[ThreadState, ...]:
        each = zip(kernel.threads, (main, 0, helper), strict=True)
        told = (replace(one, moved_bytes=number * by if helper >= 0 else None) for one, by in each)
        return tuple(one for one in told if not (ends and number and one.tid == HELPER))

    return read_process_activity(with_kernel(view, threads=moved).processes[0]).activity


@pytest.mark.parametrize(
    ("moved", "does"),
    [
        ({"ends": True}, "moving"),  # the process counts, as where threads are not counted
        ({"helper": -1}, "moving"),
        ({"syscall": 1}, "idle"),  # a thread runs a program every second, which reads
        ({"syscall": 35}, "idle"),
        ({"main": 5_000, "syscall": 1, **FULL_PIPE}, "moving"),
        ({"helper": MANY, **FULL_PIPE}, "moving"),
        ({"helper": 100, **FULL_PIPE}, "idle"),
        ({"helper": MANY, **FOR_CHILD}, "moving"),
        ({"helper": 100, **FOR_CHILD}, "idle"),
        ({"helper": MANY, **REMOTE}, "idle"),  # it does not wait for what a helper gives
    ],
)
def test_bytes_count_of_threads_that_could_end_the_wait(moved: dict[str, Any], does: str) -> None:
    assert activity(**moved) == does


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


def beside_others(view: RankView, *others: ThreadStack, owns_gil: bool = False) -> RankView:
    """The rank, its main thread with the lock or without, beside other threads."""

    def change(_: int, states: Any, stacks: Any) -> Any:
        return states, (replace(stacks[0], owns_gil=owns_gil), *others)

    return changed_rank(view, change)


CHECKPOINT_THREAD = ThreadStack(tid=9, name="checkpoint", frames=IN_ALL_REDUCE)


@pytest.mark.parametrize(
    "view",
    [
        spinning(0),
        on_device(spinning(0), "all_reduce", on_device=False),
        beside_others(on_device(spinning(0), "all_reduce"), owns_gil=True),
        beside_others(on_device(spinning(0), "all_reduce"), CHECKPOINT_THREAD),
        on_device(spinning(0, AT_ITEM, (MAIN, user("log_loss", 31)), AT_ITEM), "all_reduce"),
    ],
    ids=["no record", "gloo", "runs Python", "another thread's", "at several lines"],
)
def test_a_rank_that_computes_is_none_that_waits(view: RankView) -> None:
    assert read_rank_activity(view).activity == "busy"


LOOP = Frame("advance", "/x/lightning/pytorch/loops/fit_loop.py", 1)
STEP = Frame("training_step", "/x/lightning/pytorch/strategies/strategy.py", 1)
VALIDATION = Frame("validation_step", "/x/lightning/pytorch/strategies/strategy.py", 1)
BACKWARD = Frame("_engine_run_backward", "/x/torch/autograd/graph.py", 1)
LOADER = Frame("__next__", "/x/torch/utils/data/dataloader.py", 1)
OPTIMIZER = Frame("Optimizer.wrapper", "/x/torch/optim/optimizer.py", 1)
USERS = Frame("evaluate", "/home/me/train.py", 7)


def rare(phase: Phase | None, *frames: Frame, batch: int | None = None) -> str:
    stack = ProcessStack(pid=1, source="py-spy", threads=(ThreadStack(tid=1, frames=frames),))
    return rare_place(Beat(pid=1, phase=phase, batch=batch), Sample(taken_ns=1, stack=stack))


@pytest.mark.parametrize(
    ("phase", "frames", "place"),
    [
        ("training_step", (LOOP, STEP, USERS), ""),
        ("training_step", (USERS, BACKWARD), ""),
        ("validation", (LOOP, VALIDATION, USERS), ""),
        (None, (USERS,), ""),  # beats of the script's own
        ("generate", (USERS,), ""),
        ("training_step", (LOADER,), "dataloading"),
        ("dataloading", (LOOP, USERS), "training_step"),  # on_train_epoch_end
        ("training_step", (LOOP, USERS), "training_step"),  # on_train_batch_end
        ("training_step", (USERS,), "evaluate"),  # after the last step of a plain loop
        ("validation", (LOOP, USERS), "training_step"),  # on_validation_epoch_end
        ("training_step", (LOOP, VALIDATION, USERS), "validation"),
        ("training_step", (LOOP, OPTIMIZER, USERS), "optimizer_step"),  # inverts now and then
    ],
)
def test_what_comes_now_and_then_and_not_in_every_pass_is_a_place_of_its_own(
    phase: Phase | None, frames: tuple[Frame, ...], place: str
) -> None:
    assert rare(phase, *frames) == place
    assert not rare("training_step", LOADER, batch=3), "a callback told the batch"


IN_FUTURE = (
    MAIN,
    Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451),
    Frame("Condition.wait", f"{STDLIB}/threading.py", 327),
)
IN_OPEN = (Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83), user("read_pipe", 9))
FIFO = WaitTarget(call="openat", kind="fifo", name="/data/a.pipe")
FUTEX = WaitTarget(call="futex", kind="futex", name="0x7f")
BEFORE = (
    beside(
        rank(0, IN_FUTURE, syscall=202, waits_for=(FUTEX,)), IN_OPEN, syscall=257, waits_for=(FIFO,)
    )
    .processes[0]
    .samples[-1]
)


def after(change: Callable[[Sample], Sample]) -> tuple[WaitTarget, ...]:
    """What the process is seen to wait for, a second later, in a sample that lacks something."""
    later = change(replace(BEFORE, taken_ns=NOW_NS + 10**9))
    samples = (BEFORE, with_what_was_seen(later, BEFORE))
    return read_process(ProcessLook(pid=1, role="rank", samples=samples)).targets


def with_helper(sample: Sample, *targets: WaitTarget) -> Sample:
    *others, helper = sample.kernel.threads
    threads = (*others, replace(helper, waits_for=targets))
    return replace(sample, kernel=replace(sample.kernel, threads=threads))


def unnamed(sample: Sample) -> Sample:
    return with_helper(sample, replace(FIFO, name=""))


def by_signal(sample: Sample) -> Sample:
    """As faulthandler writes it: no classes, no ids but the main thread's."""
    main, helper = sample.stack.threads
    bare = tuple(replace(one, function=one.function.rpartition(".")[2]) for one in main.frames)
    threads = (replace(main, frames=bare), replace(helper, tid=None, name="0x7f6033fff6c0"))
    return replace(sample, stack=replace(sample.stack, source="faulthandler", threads=threads))


def at_another_line(sample: Sample) -> Sample:
    main, helper = sample.stack.threads
    moved = replace(helper, frames=(*IN_OPEN[:1], user("read_pipe", 12)))
    return replace(sample, stack=replace(sample.stack, threads=(main, moved)))


def test_what_a_look_lacks_of_a_thread_that_has_not_moved_is_known_from_before() -> None:
    """A name that was not read this time; the ids, where a stack came without."""
    assert after(unnamed) == after(by_signal) == (FIFO,)
    assert after(lambda sample: at_another_line(unnamed(sample))) == ()


def test_the_socket_by_which_an_event_loop_wakes_itself_stays_without_a_name() -> None:
    server = WaitTarget(call="epoll_wait", kind="socket", name="10.0.0.1:443", carried_bytes=9)
    itself = WaitTarget(call="epoll_wait", kind="socket")

    later = with_helper(BEFORE, replace(server, carried_bytes=10), itself)
    assert with_what_was_seen(later, with_helper(BEFORE, server, itself)) == later


# Loops that get nowhere: what shows them, and what a computation looks like.


def at(
    second: int, *functions: str, helper: str = "", file: str = "work.py", **main: Any
) -> Sample:
    """A look that finds the main thread in these functions, and another thread in one."""
    frames = tuple(Frame(name, "train.py", second) for name in functions)
    other = ThreadStack(tid=2, frames=(Frame(helper, file, 1),) if helper else ())
    stack = ProcessStack(
        pid=1, source="py-spy", threads=(ThreadStack(tid=1, frames=frames, **main), other)
    )
    return Sample(taken_ns=second * SECOND, stack=stack)


def test_several_lines_or_python_at_one_show_that_it_goes_round() -> None:
    met = FunctionsMet()
    met.meet(at(2, "main"), 0, of_child=False)
    assert not met.goes_round
    met.meet(at(2, "main"), 2 * SECOND, of_child=False)
    met.meet(at(3, "crop"), 2 * SECOND, of_child=True)
    assert not met.goes_round
    met.meet(at(4, "main"), 3 * SECOND, of_child=False)
    assert not met.goes_round  # the worker's function was new, so what was seen before is past
    met.meet(at(5, "main"), 3 * SECOND, of_child=False)
    assert met.goes_round
    met.meet(at(6, "main", "evaluate"), 3 * SECOND, of_child=False)
    assert not met.goes_round
    met.meet(at(7, "main", "evaluate", owns_gil=True), 6 * SECOND, of_child=False)
    assert met.goes_round
    assert met.meet(at(9, "main"), 8 * SECOND, of_child=False), "after a beat all is new again"


@pytest.mark.parametrize(("line", "new"), [(20, False), (31, True)])
def test_a_function_that_a_loop_is_in_for_moments_is_nothing_new_where_a_known_line_calls_it(
    line: int, new: bool
) -> None:
    """`while True: randrange(...); crop.sum()` is seen in `randrange` once in a hundred looks."""

    def in_loop(second: int, line: int, *called: str) -> Sample:
        frames = (Frame("main", "train.py", 5), Frame("crop", "train.py", line))
        below = tuple(Frame(name, "/usr/lib/python3.11/random.py", 1) for name in called)
        main = ThreadStack(tid=1, frames=frames + below)
        stack = ProcessStack(pid=1, source="py-spy", threads=(main,))
        return Sample(taken_ns=second * SECOND, stack=stack)

    met = FunctionsMet()
    assert met.meet(in_loop(2, 20), 0, of_child=False)
    assert met.meet(in_loop(3, 20, "sample"), 2 * SECOND, of_child=False)
    for second in range(4, 20):
        assert not met.meet(in_loop(second, 20 + second % 2), 3 * SECOND, of_child=False)
    assert met.meet(in_loop(20, line, "randrange"), 3 * SECOND, of_child=False) is new


DEEPER = (*IN_LOAD, user("pick", 52))
CROPPING = (*IN_GETITEM, user("crop", 9, "data.py"))
KNOWN = Pace(longest_pause_s=0.2, pauses=9)


def without_news(seconds: float, *children: ProcessLook, **fields: Any) -> RankView:
    """A rank that moves, and has shown nothing new for so long: its worker, or it itself."""
    stacks = (IN_LOADER,) if children else (IN_LOAD, DEEPER, IN_LOAD)
    view = rank(1, *stacks, children=children, cpu=0.0 if children else 1.0, **fields)
    return replace(view, nothing_new_for_s=seconds)


def cropping(**fields: Any) -> ProcessLook:
    return worker(0, IN_GETITEM, CROPPING, IN_GETITEM, cpu=1.0, **fields)


@pytest.mark.parametrize(
    ("view", "activity"),
    [
        (without_news(5.9), "moving"),
        (without_news(6.0), "busy"),
        (without_news(99.0, bytes_s=100_000), "moving"),
    ],
)
def test_a_livelock_takes_some_time_to_know_and_moves_no_bytes(
    view: RankView, activity: str
) -> None:
    assert read_rank_activity(view).activity == activity


@pytest.mark.parametrize(
    ("seconds", "told"), [(9.9, "healthy"), (10.0, "suspect"), (300.0, "hang")]
)
@pytest.mark.parametrize("children", [(), (cropping(),)])
def test_a_livelock_is_called_a_hang_after_the_stall_timeout_however_fast_the_pace(
    seconds: float, told: str, children: tuple[ProcessLook, ...]
) -> None:
    assert judge(job(WAITS, without_news(seconds, *children, pace=KNOWN))).verdict == told


@pytest.mark.parametrize(
    ("seconds", "told"), [(59.0, "healthy"), (61.0, "suspect"), (299.0, "suspect"), (300.0, "hang")]
)
def test_on_a_crowded_machine_a_livelock_takes_as_much_of_the_processor_to_know(
    seconds: float, told: str
) -> None:
    view = rank(1, IN_LOAD, DEEPER, IN_LOAD, cpu=0.1, pace=KNOWN)
    starved = with_main(view, queued_s=lambda number: 0.9 * number)
    assert judge(job(WAITS, replace(starved, nothing_new_for_s=seconds))).verdict == told


@pytest.mark.parametrize(("seconds", "told"), [(59.0, "healthy"), (61.0, "suspect")])
def test_on_a_crowded_machine_a_loop_that_spins_takes_as_much_of_the_processor_to_know(
    seconds: float, told: str
) -> None:
    view = rank(1, IN_LOAD, IN_LOAD, IN_LOAD, cpu=0.1, silent=seconds, goes_round=True)
    starved = with_main(view, queued_s=lambda number: 0.9 * number)
    assert judge(job(WAITS, replace(starved, nothing_new_for_s=seconds))).verdict == told


SLEEP = WaitTarget(call="clock_nanosleep", kind="time")


def seen(second: int, turns: int | None, *waits_for: WaitTarget, helpers_s: float = 0.0) -> Sample:
    """A sample of a main thread with so many turns so far; helpers computed for so long."""
    (one,) = look(IN_LOAD, samples=1, turns=turns, waits_for=waits_for).samples
    kernel = replace(one.kernel, cpu_s=one.kernel.threads[0].cpu_s + helpers_s)
    return replace(one, taken_ns=second * SECOND, kernel=kernel)


def test_whoever_naps_at_one_line_goes_round() -> None:
    met = FunctionsMet()
    met.meet(seen(2, 100, SLEEP), 0, of_child=False)
    met.meet(seen(3, 9_000), 2 * SECOND, of_child=False)
    assert not met.goes_round
    met.meet(seen(4, 18_000, SLEEP), 2 * SECOND, of_child=False)
    assert met.goes_round


def polling(second: int, turns: int, *called: str) -> Sample:
    """A look at a thread that sleeps, asks and sleeps again; or is seen where that leads."""
    one = seen(second, turns, SLEEP)
    main = one.stack.threads[0]
    frames = (*main.frames, *(Frame(name, "train.py", 7) for name in called))
    return replace(one, stack=replace(one.stack, threads=(replace(main, frames=frames),)))


@pytest.mark.parametrize(
    ("turns", "later", "new"),
    [
        pytest.param(10, (), [False, False], id="it passes through what it calls"),
        pytest.param(10, ("report",), [False, True], id="it stays there"),
        pytest.param(0, (), [True, False], id="it was never seen to come back"),
    ],
)
def test_one_look_that_meets_a_poll_elsewhere_is_nothing_new(
    turns: int, later: tuple[str, ...], new: list[bool]
) -> None:
    met = FunctionsMet()
    for second in (2, 3, 4):
        met.meet(polling(second, turns * second), 0, of_child=False)
    assert met.meet(polling(5, turns * 5, "report"), 2 * SECOND, of_child=False) is new[0]
    assert met.in_doubt is not new[0]
    assert met.meet(polling(6, turns * 6, *later), 2 * SECOND, of_child=False) is new[1]
