"""Through which threads a wait leads: told by the kernel's view and whose code a thread runs."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from cases import IN_BARRIER, MAIN, SITE, STDLIB, job, look, rank, user

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.evidence import (
    Frame,
    ProcessLook,
    ThreadStack,
    ThreadState,
    WaitTarget,
)
from lightning_hangcheck.reading.activity.rank_activity import (
    read_process_activity,
    read_rank_activity,
)
from lightning_hangcheck.reading.waits.kernel_targets import in_own_memory, limited, steady_targets
from lightning_hangcheck.reading.waits.stuck_thread import stuck_thread
from lightning_hangcheck.reading.waits.thread_locks import waits_in_vain
from lightning_hangcheck.reading.waits.wait_chain import wait_chain

FUTEX = 202
WAITS = rank(0, IN_BARRIER)
LIBRARY_WAIT = Frame("Condition.wait", f"{STDLIB}/threading.py", 327)
IN_FUTURE = (
    MAIN,
    user("prefetch", 30),
    Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451),
    LIBRARY_WAIT,
)
IN_QUEUE = (
    MAIN,
    user("next_batch", 31),
    Frame("Queue.get", f"{STDLIB}/queue.py", 171),
    LIBRARY_WAIT,
)
IN_JOIN = (MAIN, user("save", 32), Frame("Thread.join", f"{STDLIB}/threading.py", 1119))
IN_EXIT = (Frame("_shutdown", f"{STDLIB}/threading.py", 1590),)
IN_LOOP = (
    MAIN,
    user("read", 33),
    Frame("BaseEventLoop._run_once", f"{STDLIB}/asyncio/base_events.py", 1884),
    Frame("EpollSelector.select", f"{STDLIB}/selectors.py", 468),
)
POOL = (Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83),)
IN_FETCH = (*POOL, user("fetch", 8))
IN_PRODUCE = (user("produce", 7),)
IN_METRICS = (user("log_metrics", 5),)
IN_WANDB_READER = (Frame("read", f"{SITE}/wandb/sdk/reader.py", 5),)
SERVER = WaitTarget(call="recvfrom", kind="socket", name="10.0.0.1:443", connection=6)
TRACKER = WaitTarget(call="recvfrom", kind="socket", name="10.0.0.9:443", connection=5)
SELF_PIPE = WaitTarget(call="epoll_wait", kind="socket")
ENDLESS = WaitTarget(call="futex", kind="futex", name="0x7f")


class Thread(msgspec.Struct):
    """A thread as it is in each sample.

    Attributes:
        wakes_ns: When it wakes, in each sample.
    """

    frames: tuple[Frame, ...]
    waits_for: tuple[WaitTarget, ...] = ()
    syscall: int | None = 0
    cpu: float = 0.0
    wakes_ns: tuple[int | None, ...] = (None, None, None)
    carried: int = 0


def sleeper(frames: tuple[Frame, ...], *wakes_ns: int) -> Thread:
    timed = (WaitTarget(call="clock_nanosleep", kind="time"),)
    return Thread(frames, timed, syscall=230, wakes_ns=wakes_ns)


def parked(frames: tuple[Frame, ...]) -> Thread:
    return Thread(frames, (ENDLESS,), syscall=FUTEX)


def process(main: Thread, *others: Thread, **fields: Any) -> ProcessLook:
    """A rank of pid 101 with these threads, their ids 101, 201, 202, ..."""
    plain = look(main.frames, pid=101, **fields)
    threads = [(101, main), *((201 + number, one) for number, one in enumerate(others))]
    samples = []
    for number, one in enumerate(plain.samples):
        assert one.kernel is not None
        assert one.stack is not None
        states = tuple(
            ThreadState(
                tid=tid,
                state="S",
                cpu_s=number * 1.1 * thread.cpu,
                syscall=thread.syscall,
                wakes_ns=thread.wakes_ns[number],
                waits_for=tuple(
                    msgspec.structs.replace(target, carried_bytes=number * thread.carried)
                    for target in thread.waits_for
                ),
            )
            for tid, thread in threads
        )
        stacks = tuple(ThreadStack(tid=tid, frames=thread.frames) for tid, thread in threads)
        cpu_s = sum(state.cpu_s for state in states)
        kernel = msgspec.structs.replace(one.kernel, threads=states, cpu_s=cpu_s)
        stack = msgspec.structs.replace(one.stack, threads=stacks)
        samples.append(msgspec.structs.replace(one, kernel=kernel, stack=stack))
    return msgspec.structs.replace(plain, samples=tuple(samples))


def ends(main: Thread, *others: Thread) -> list[str]:
    """Functions in which the wait ends, as the newest sample has it."""
    chain = wait_chain(process(main, *others).samples[-1])
    assert chain is not None
    return [end.frames[-1].function for end in chain.ends]


@pytest.mark.parametrize("main", [IN_FUTURE, IN_QUEUE, IN_JOIN])
def test_a_wait_for_threads_leads_to_what_the_awaited_one_waits_for(
    main: tuple[Frame, ...],
) -> None:
    seen = process(parked(main), Thread(IN_FETCH, (SERVER,)))
    stuck = stuck_thread(seen)
    assert stuck is not None
    assert stuck.frames == IN_FETCH
    assert [target.name for target in steady_targets(seen)] == ["10.0.0.1:443"]


@pytest.mark.parametrize(("computes", "activity"), [(IN_FETCH, "busy"), (IN_METRICS, "idle")])
def test_a_thread_that_ends_the_wait_is_held_to_the_same_share_as_the_main_thread(
    computes: tuple[Frame, ...], activity: str
) -> None:
    seen = process(
        parked(IN_FUTURE),
        *(
            Thread(one, syscall=None, cpu=0.05 * (one is computes))
            for one in (IN_FETCH, IN_METRICS)
        ),
    )
    assert read_process_activity(seen).activity == activity


def test_an_event_loop_waits_for_its_connections_and_for_its_executor() -> None:
    loop = Thread(IN_LOOP, (SELF_PIPE, TRACKER), syscall=232)
    assert ends(loop, Thread(IN_FETCH, (SERVER,))) == ["EpollSelector.select", "fetch"]
    idle = Thread(IN_LOOP, (SELF_PIPE,), syscall=232)
    assert ends(idle, Thread(IN_FETCH, (SERVER,))) == ["fetch"]
    assert ends(idle, Thread(IN_FETCH[1:], (SERVER,)), parked(POOL)) == ["fetch"]


@pytest.mark.parametrize(
    ("waits_for", "own"),
    [((SELF_PIPE,), True), ((SELF_PIPE,) * 2, False), ((SELF_PIPE, TRACKER), False)],
)
def test_an_event_loop_without_a_connection_or_time_limit_waits_for_its_own_process(
    waits_for: tuple[WaitTarget, ...], own: bool
) -> None:
    assert in_own_memory(process(Thread(IN_LOOP, waits_for, syscall=232))) == own


def test_an_event_loop_in_a_thread_of_nobodys_runs_anybodys_coroutines() -> None:
    """fsspec's ``sync`` asks once a second whether the event is set that a coroutine will set."""
    asks = Thread(
        (*IN_QUEUE[:2], Frame("Event.wait", f"{STDLIB}/threading.py", 629), LIBRARY_WAIT),
        (WaitTarget(call="futex", kind="time"),),
        syscall=FUTEX,
    )
    loop = (Frame("Thread.run", f"{STDLIB}/threading.py", 982), *IN_LOOP[2:])
    seen = process(asks, Thread(loop, (SELF_PIPE, SERVER), syscall=232))
    assert [target.name for target in steady_targets(seen)] == ["10.0.0.1:443"]
    wandbs = (Frame("run", f"{SITE}/wandb/sdk/loop.py", 5), *IN_LOOP[2:])
    assert not steady_targets(process(asks, Thread(wandbs, (SELF_PIPE, SERVER), syscall=232)))


def test_only_the_pools_own_threads_do_the_pools_work() -> None:
    ticks = sleeper(IN_METRICS, 1, 2, 3)
    assert ends(parked(IN_FUTURE), ticks, Thread(IN_FETCH, (SERVER,)), parked(POOL)) == ["fetch"]


def test_a_librarys_thread_that_waits_for_news_ends_nobodys_wait() -> None:
    news = Thread(IN_WANDB_READER, (TRACKER,))
    assert ends(parked(IN_QUEUE), news, parked(POOL)) == []
    own = (*IN_QUEUE[:1], Frame("deliver", f"{SITE}/wandb/sdk/mailbox.py", 9), *IN_QUEUE[2:])
    assert ends(parked(own), news) == ["read"]


def test_a_librarys_thread_that_writes_may_hold_what_others_wait_for() -> None:
    """A logging handler writes to a full pipe with its lock held."""
    handler = f"{STDLIB}/logging/__init__.py"
    full = WaitTarget(call="write", kind="pipe", name="pipe:[9]")
    writes = Thread((Frame("StreamHandler.flush", handler, 1094),), (full,), syscall=1)
    takes = parked((Frame("Handler.acquire", handler, 927),))
    assert ends(parked(IN_QUEUE), takes, writes) == ["StreamHandler.flush"]


@pytest.mark.parametrize("main", [IN_JOIN, IN_QUEUE])
def test_a_librarys_function_that_works_in_a_thread_ends_waits(main: tuple[Frame, ...]) -> None:
    saves = Thread((Frame("save_pretrained", f"{SITE}/transformers/saving.py", 9),), syscall=None)
    assert ends(parked(main), sleeper(IN_METRICS, 1, 2, 3), saves) == [
        "log_metrics",
        "save_pretrained",
    ]


def test_a_join_is_for_the_programs_own_thread_where_there_is_one() -> None:
    news, own = Thread(IN_WANDB_READER, (TRACKER,)), Thread(IN_PRODUCE, (SERVER,))
    assert ends(parked(IN_JOIN), news, own) == ["produce"]
    assert ends(parked(IN_JOIN), news) == ["read"]


def test_an_exit_waits_for_threads_and_shows_where_they_stand() -> None:
    flushes = (user("flush_forever", 19), *IN_QUEUE[2:])
    own = process(parked(IN_EXIT), parked(flushes))
    stuck = stuck_thread(own)
    assert stuck is not None
    assert stuck.frames == flushes
    verdict = judge(job(WAITS, msgspec.structs.replace(rank(1, IN_EXIT), processes=(own,))))
    assert (verdict.verdict, verdict.culprits, verdict.phase) == ("hang", (1,), "teardown")
    assert "in flush_forever (demo/train.py:19)" in verdict.summary
    assert ends(parked(IN_EXIT), Thread(IN_FETCH[1:], (SERVER,))) == ["fetch"]


def test_only_an_exit_behind_waits_without_limit_is_ended_by_nobody() -> None:
    flushes = (user("flush_forever", 19), *IN_QUEUE[2:])
    asks_again = Thread(flushes, (ENDLESS, *sleeper(()).waits_for), syscall=FUTEX)
    assert waits_in_vain(process(parked(IN_EXIT), parked(flushes)))
    assert not waits_in_vain(process(parked(IN_EXIT), asks_again))
    assert not waits_in_vain(process(parked(IN_EXIT), Thread(flushes[:1], (SERVER,))))
    assert not waits_in_vain(process(parked(IN_QUEUE), parked(flushes)))
    library = (Frame("flush", f"{SITE}/grpc/_channel.py", 9), *flushes[1:])
    assert not waits_in_vain(process(parked(IN_EXIT), parked((flushes[0], *library))))


def test_threads_that_wait_for_each_other_lead_nowhere() -> None:
    waits = parked((*POOL, user("tokenize", 3), *IN_FUTURE[2:]))
    assert ends(parked(IN_FUTURE), waits) == []
    circle = process(parked(IN_FUTURE), waits)
    assert waits_in_vain(circle)
    view = msgspec.structs.replace(rank(1, IN_FUTURE, silent=5.0), processes=(circle,))
    verdict = judge(job(rank(0, IN_BARRIER, silent=5.0), view))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "rank_stalled")


@pytest.mark.parametrize(("main", "outside"), [(IN_JOIN, ()), (IN_FUTURE, POOL)])
def test_a_thread_that_waits_for_news_is_where_the_wait_for_its_end_or_its_work_ends(
    main: tuple[Frame, ...], outside: tuple[Frame, ...]
) -> None:
    consumes = parked((*outside, user("consume", 9), *IN_QUEUE[2:]))
    awaited = process(parked(main), consumes)
    stuck = stuck_thread(awaited)
    assert stuck is not None
    assert stuck.frames == consumes.frames
    assert waits_in_vain(awaited)


def test_a_join_is_ended_by_any_thread_that_may_call_back() -> None:
    consumes = parked((user("consume", 9), *IN_QUEUE[2:]))
    assert not waits_in_vain(process(parked(IN_JOIN), consumes, sleeper(IN_METRICS, 1, 2, 3)))
    assert not waits_in_vain(process(parked(IN_QUEUE), consumes))
    calls_back = Thread(IN_WANDB_READER, (TRACKER,))
    assert not waits_in_vain(process(parked(IN_JOIN), consumes, calls_back))


TIMED = WaitTarget(call="futex", kind="time")
LOOP_THREAD = Thread(IN_LOOP[2:], (SELF_PIPE,), syscall=232)


@pytest.mark.parametrize(
    ("main", "helper", "timed"),
    [
        (parked(IN_FUTURE), LOOP_THREAD, False),
        (
            parked(IN_FUTURE),
            Thread(IN_LOOP[2:], (SELF_PIPE, TIMED), syscall=232),
            True,
        ),
        (Thread(IN_FUTURE, (TIMED,), syscall=FUTEX), parked((*IN_FETCH, LIBRARY_WAIT)), True),
        (parked(IN_JOIN), Thread((*IN_FETCH, LIBRARY_WAIT), (TIMED,), syscall=FUTEX), True),
    ],
)
def test_what_ends_by_itself_at_a_time_is_not_waited_for_in_vain(
    main: Thread, helper: Thread, timed: bool
) -> None:
    """``asyncio.sleep`` in a loop's thread, ``result(timeout=60)``, ``queue.get(timeout=60)``."""
    seen = process(main, helper)
    assert not waits_in_vain(seen)
    assert limited(seen) == timed


def test_an_event_loop_without_anything_to_do_is_nobodys_place() -> None:
    """What it was asked for stands in no frame: the line that asked for it is the one to show."""
    ticking = Thread((MAIN, user("serve", 25), *IN_LOOP[2:]), (SELF_PIPE, TIMED), syscall=232)
    assert stuck_thread(process(parked(IN_FUTURE), ticking)) is None


def test_a_wait_for_ranks_is_where_it_ends() -> None:
    barrier = parked((*POOL, *IN_BARRIER[1:]))
    assert ends(parked(IN_BARRIER), Thread(IN_FETCH, (SERVER,))) == ["barrier"]
    seen = process(parked(IN_FUTURE), barrier)
    view = msgspec.structs.replace(rank(1, IN_FUTURE), processes=(seen,))
    assert read_rank_activity(view).activity == "waiting"


def test_a_background_threads_collective_is_not_the_main_threads() -> None:
    barrier = parked((*POOL, *IN_BARRIER[1:]))
    computes = Thread((MAIN, user("evaluate", 60)), syscall=None, cpu=1.0)
    view = msgspec.structs.replace(rank(1, IN_FUTURE), processes=(process(computes, barrier),))
    read = read_rank_activity(view)
    assert (read.activity, read.wait, read.stuck) == ("busy", None, None)


def test_one_that_ticks_is_not_where_a_wait_ends_and_one_that_sleeps_on_is() -> None:
    ticks, sleeps = sleeper(IN_METRICS, 1, 2, 3), sleeper(IN_PRODUCE, 9, 9, 9)
    seen = process(parked(IN_QUEUE), ticks)
    assert stuck_thread(seen) is None
    both = process(parked(IN_QUEUE), ticks, sleeps)
    stuck = stuck_thread(both)
    assert stuck is not None
    assert stuck.frames == IN_PRODUCE
    assert limited(both)
    assert not limited(process(parked(IN_QUEUE)))


def _activity(*threads: Thread) -> str:
    view = msgspec.structs.replace(rank(1, IN_QUEUE), processes=(process(*threads),))
    return read_rank_activity(view).activity


def test_any_byte_at_the_awaited_connection_is_progress_and_none_elsewhere() -> None:
    slow = Thread(IN_FETCH, (SERVER,), carried=20)
    assert _activity(parked(IN_FUTURE), slow) == "moving"
    metrics = Thread(IN_METRICS, (TRACKER,), carried=20)
    assert _activity(parked(IN_FUTURE), metrics, Thread(IN_FETCH, (SERVER,))) == "idle"


def test_another_connection_to_the_same_place_is_progress() -> None:
    asks = process(parked(IN_FUTURE), Thread(IN_FETCH, (SERVER,)))
    *earlier, newest = asks.samples
    assert newest.kernel is not None
    main, helper = newest.kernel.threads
    again = (msgspec.structs.replace(SERVER, connection=7, carried_bytes=0),)
    threads = (main, msgspec.structs.replace(helper, waits_for=again))
    kernel = msgspec.structs.replace(newest.kernel, threads=threads)
    samples = (*earlier, msgspec.structs.replace(newest, kernel=kernel))
    moved = msgspec.structs.replace(asks, samples=samples)
    assert read_process_activity(moved).activity == "moving"
    assert read_process_activity(asks).activity == "idle"


def test_a_loop_at_several_connections_stands_still_until_one_of_them_carries() -> None:
    several = tuple(msgspec.structs.replace(SERVER, connection=inode) for inode in (7, 8, 9))
    loop = Thread(IN_LOOP, (*several, SELF_PIPE), syscall=232)
    assert _activity(loop) == "idle"
    assert _activity(msgspec.structs.replace(loop, carried=20)) == "moving"


@pytest.mark.parametrize(
    ("later", "activity"),
    [
        ({"carried_bytes": None}, "idle"),
        ({"carried_bytes": None, "connection": None}, "idle"),
        ({"connection": 10, "carried_bytes": 0}, "moving"),
        (None, "moving"),
    ],
)
def test_a_connection_that_the_kernel_left_out_of_its_list_has_carried_nothing(
    later: dict[str, Any] | None, activity: str
) -> None:
    """It may skip sockets where others come and go meanwhile; one that is gone was answered."""
    several = [msgspec.structs.replace(SERVER, connection=inode) for inode in (7, 8, 9)]
    seen = process(Thread(IN_LOOP, (*several, SELF_PIPE), syscall=232))
    *earlier, newest = seen.samples
    assert newest.kernel is not None
    (main,) = newest.kernel.threads
    first, *others = main.waits_for
    changed = [msgspec.structs.replace(first, **later)] if later is not None else []
    threads = (msgspec.structs.replace(main, waits_for=(*changed, *others)),)
    kernel = msgspec.structs.replace(newest.kernel, threads=threads)
    samples = (*earlier, msgspec.structs.replace(newest, kernel=kernel))
    read = read_process_activity(msgspec.structs.replace(seen, samples=samples))
    assert read.activity == activity


def test_what_this_package_wraps_runs_in_threads_of_the_program() -> None:
    wrapper = Frame("wrapped", f"{SITE}/lightning_hangcheck/hooks/zero_code/wrapping.py", 9)
    assert ends(parked(IN_FUTURE), parked((*POOL, wrapper, IN_BARRIER[-1]))) == ["barrier"]
    ours = (Frame("run", f"{STDLIB}/threading.py", 9), wrapper)
    assert ends(parked(IN_FUTURE), Thread(ours, (SERVER,))) == []


def test_a_helper_that_computes_something_else_excuses_nobody() -> None:
    computes = Thread(IN_METRICS, syscall=None, cpu=1.0)
    fetches = Thread(IN_FETCH, (SERVER,))
    assert _activity(parked(IN_FUTURE), fetches, computes) == "idle"
    receives = Thread((MAIN, user("receive", 3)), (SERVER,))
    assert _activity(receives, computes) == "idle"
    works = Thread(IN_FETCH, syscall=None, cpu=1.0)
    assert _activity(parked(IN_FUTURE), works) == "busy"


def _judged(*threads: Thread) -> Any:
    view = msgspec.structs.replace(rank(1, IN_QUEUE, silent=400.0), processes=(process(*threads),))
    return judge(job(WAITS, view))


def test_the_verdict_names_the_line_of_the_thread_and_where_it_is_awaited() -> None:
    verdict = _judged(parked(IN_FUTURE), Thread(IN_FETCH, (SERVER,)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "network_wait")
    assert "in fetch (demo/train.py:8)" in verdict.summary
    texts = [item.text for item in verdict.evidence]
    assert any("waits there for thread 201, which stands in fetch" in text for text in texts)
    assert any(text.startswith("stands in prefetch") for text in texts)
    assert "thread 201 is in recvfrom on a connection to 10.0.0.1:443" in texts


@pytest.mark.parametrize(
    ("target", "cause"),
    [
        (WaitTarget(call="flock", kind="lock", name="/data/a.lock"), "file_lock"),
        (WaitTarget(call="write", kind="file", name="/nfs/a.bin"), "filesystem_wait"),
    ],
)
def test_the_cause_is_told_by_the_end_of_the_chain(target: WaitTarget, cause: str) -> None:
    assert _judged(parked(IN_JOIN), Thread(IN_PRODUCE, (target,))).cause == cause


def test_hundreds_of_threads_cost_milliseconds() -> None:
    """Each look of a sidecar follows the wait dozens of times; one that rests is never followed."""
    waiting = (user("consume", 9), LIBRARY_WAIT)
    reader = Thread(IN_WANDB_READER, (TRACKER,))
    sample = process(parked(IN_QUEUE), *(parked(waiting) for _ in range(300)), reader).samples[-1]
    began_s = time.process_time()
    chain = wait_chain(sample)
    assert time.process_time() - began_s < 0.5
    assert chain is not None
    assert len(chain.threads) == 301


TIMER = (
    Frame("Thread._bootstrap", f"{STDLIB}/threading.py", 1002),
    Frame("Timer.run", f"{STDLIB}/threading.py", 1399),
    Frame("Event.wait", f"{STDLIB}/threading.py", 629),
    LIBRARY_WAIT,
)
UNTIL_TIME = (WaitTarget(call="futex", kind="time"),)
IN_LOCK = (MAIN, user("save", 32), Frame("Condition.__enter__", f"{STDLIB}/threading.py", 271))


def timer() -> Thread:
    return Thread(TIMER, UNTIL_TIME, syscall=FUTEX)


@pytest.mark.parametrize("main", [IN_QUEUE, IN_JOIN])
@pytest.mark.parametrize("others", [(), (parked((*IN_PRODUCE, LIBRARY_WAIT)),)])
def test_a_timer_that_has_not_run_out_may_end_a_wait_for_news_or_be_joined(
    main: tuple[Frame, ...], others: tuple[Thread, ...]
) -> None:
    """Whatever it was given to call, it will: that wait has an end."""
    seen = process(parked(main), *others, timer())
    assert limited(seen)
    assert not in_own_memory(seen)
    assert not waits_in_vain(seen)


def test_a_timer_gives_no_lock_back() -> None:
    locked = parked((user("push", 7), IN_LOCK[-1]))
    seen = process(parked(IN_LOCK), locked, timer())
    assert not limited(seen)
    assert waits_in_vain(seen)


def joining(seen: ProcessLook, tid: int) -> ProcessLook:
    """The process, its main thread known to join a thread."""
    samples = []
    for one in seen.samples:
        assert one.stack is not None
        main, *others = one.stack.threads
        threads = (msgspec.structs.replace(main, joined=tid), *others)
        stack = msgspec.structs.replace(one.stack, threads=threads)
        samples.append(msgspec.structs.replace(one, stack=stack))
    return msgspec.structs.replace(seen, samples=tuple(samples))


def test_of_several_threads_the_one_that_is_joined_counts() -> None:
    locked = parked((user("push", 7), IN_LOCK[-1]))
    seen = process(parked(IN_JOIN), locked, timer())
    assert waits_in_vain(joining(seen, 201))
    assert not waits_in_vain(joining(seen, 202))
    assert limited(joining(seen, 202))


def test_a_main_thread_that_serves_others_ends_nobodys_wait_while_it_waits_for_calls() -> None:
    """That of an actor of Ray: its loop in C++ is woken by an eventfd, and by timers of its own."""
    serves = (Frame("Worker.main_loop", f"{SITE}/ray/_private/worker.py", 1069),)
    events, files = (
        tuple(WaitTarget(call="epoll_wait", kind="other", name=name) for name in names)
        for names in (("eventfd:[49]", "anon_inode:[timerfd]"), ("anon_inode:inotify",))
    )
    assert ends(parked(IN_QUEUE), Thread(serves, events, syscall=232)) == []
    assert ends(parked(IN_QUEUE), Thread(serves, files, syscall=232)) == ["Worker.main_loop"]
