"""Through which threads a wait leads: told by the kernel's view and whose code a thread runs."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from cases import IN_BARRIER, MAIN, SITE, STDLIB, job, rank, user
from judge.reading.waiting_threads import (
    ENDLESS,
    FUTEX,
    IN_EXIT,
    IN_FETCH,
    IN_FUTURE,
    IN_JOIN,
    IN_LOOP,
    IN_METRICS,
    IN_PRODUCE,
    IN_QUEUE,
    IN_WANDB_READER,
    LIBRARY_WAIT,
    POOL,
    SELF_PIPE,
    SERVER,
    TIMED,
    TRACKER,
    WAITS,
    Thread,
    ends,
    parked,
    process,
    sleeper,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.activity import read_process_activity, read_rank_activity
from lightning_hangcheck.judge.threads import Moment
from lightning_hangcheck.judge.waits import (
    in_own_memory,
    limited,
    steady_targets,
    stuck_thread,
    waits_in_vain,
)
from lightning_hangcheck.model.evidence import (
    Frame,
    WaitTarget,
)


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


def test_what_this_package_wraps_runs_in_threads_of_the_program() -> None:
    wrapper = Frame("wrapped", f"{SITE}/lightning_hangcheck/hooks/zero_code/wrapping.py", 9)
    assert ends(parked(IN_FUTURE), parked((*POOL, wrapper, IN_BARRIER[-1]))) == ["barrier"]
    ours = (Frame("run", f"{STDLIB}/threading.py", 9), wrapper)
    assert ends(parked(IN_FUTURE), Thread(ours, (SERVER,))) == []


def _judged(*threads: Thread) -> Any:
    view = msgspec.structs.replace(rank(1, IN_QUEUE, silent=400.0), processes=(process(*threads),))
    return judge(job(WAITS, view))


@pytest.mark.parametrize(
    ("main", "awaits"), [(IN_FUTURE, "prefetch"), (IN_QUEUE, "next_batch"), (IN_JOIN, "save")]
)
def test_the_verdict_names_the_line_of_the_thread_and_where_it_is_awaited(
    main: tuple[Frame, ...], awaits: str
) -> None:
    verdict = _judged(parked(main), Thread(IN_FETCH, (SERVER,)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "network_wait")
    assert "in fetch (demo/train.py:8)" in verdict.summary
    texts = [item.text for item in verdict.evidence]
    assert any("waits there for thread 201, which is in fetch" in text for text in texts)
    assert any(text.startswith(f"is in {awaits}") for text in texts)
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
    chain = Moment(sample, None).chain
    assert time.process_time() - began_s < 0.5
    assert chain is not None
    assert len(chain.threads) == 301
