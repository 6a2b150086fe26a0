"""A circle of waits is closed only where no free thread of its processes may open it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    FUTEX,
    IN_BARRIER,
    IN_LOAD,
    MAIN,
    SITE,
    STDLIB,
    changed_rank,
    job,
    look,
    rank,
    torch,
    user,
    waiting_for,
)
from cases import beside as with_thread
from flights import flying
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.evidence import Frame, WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import ProcessLook

SLEEP = WaitTarget(call="clock_nanosleep", kind="time")
ACCEPT = WaitTarget(call="accept4", kind="socket", name="127.0.0.1:80")
STORE = WaitTarget(call="poll", kind="socket", name="127.0.0.1:29500")
EVENT_WAIT = Frame("Event.wait", f"{STDLIB}/threading.py", 629)
TIMER = (Frame("Timer.run", f"{STDLIB}/threading.py", 1376), EVENT_WAIT)
LOOP = (
    Frame("BaseEventLoop.run_forever", f"{STDLIB}/asyncio/base_events.py", 607),
    Frame("BaseEventLoop._run_once", f"{STDLIB}/asyncio/base_events.py", 1884),
    Frame("EpollSelector.select", f"{STDLIB}/selectors.py", 468),
)
LOCK = Frame("wait", f"{STDLIB}/threading.py", 320)
IN_SAVE = (MAIN, user("save", 31), torch("all_reduce"))
ANSWER = (user("serve", 12), user("answer", 7))


def beside(
    view: RankView, frames: tuple[Frame, ...] = ANSWER, wakes: tuple[int, ...] = (), **state: Any
) -> RankView:
    """The rank with a thread that serves others, and sleeps."""
    return with_thread(view, frames, wakes, **{"waits_for": (SLEEP,), **state})


def told(serving: RankView, silent: float, **asking: Any) -> str:
    """What is told where rank 1 asks rank 0 at a connection, and that waits for it."""
    fields = asking or waiting_for("socket", "recvfrom", "127.0.0.1:80", 100)
    return judge(job(serving, rank(1, IN_LOAD, silent=silent, **fields))).verdict


@pytest.mark.parametrize(
    ("state", "silent"),
    [
        ({}, 200.0),
        ({"state": "R", "waits_for": ()}, 200.0),
        ({"waits_for": (ACCEPT,)}, 200.0),
        (waiting_for("process", "wait4", "700", 700), 25.0),
    ],
)
def test_a_thread_of_the_one_that_is_asked_may_answer(state: dict[str, Any], silent: float) -> None:
    assert told(beside(rank(0, IN_BARRIER), **state), silent) in ("suspect", "healthy")


@pytest.mark.parametrize(
    "held",
    [
        waiting_for("pipe", "read", "pipe:[9]", 100),
        waiting_for("lock", "flock", "/data/cache.lock", 100),
        waiting_for("fifo", "read", "/data/fifo", 100),
    ],
)
def test_whatever_the_other_holds_any_thread_of_it_may_bring(held: dict[str, Any]) -> None:
    assert told(rank(0, IN_BARRIER), 6.0, **held) == "hang"
    assert told(beside(rank(0, IN_BARRIER)), 200.0, **held) == "suspect"


@pytest.mark.parametrize("timer", [TIMER, LOOP])
def test_a_timer_may_end_whatever_its_process_waits_for(timer: tuple[Frame, ...]) -> None:
    """A lock that it gives back later; so may an event loop that is to do something then."""
    stands: dict[str, Any] = {"waits_for": FUTEX, "syscall": 202}
    waits = rank(0, (MAIN, user("fetch", 9), LOCK), silent=200.0, **stands)
    assert judge(job(waits, rank(1, IN_BARRIER, silent=200.0))).verdict == "hang"
    timed = beside(waits, timer)
    assert judge(job(timed, rank(1, IN_BARRIER, silent=200.0))).verdict == "suspect"
    of_library = (Frame("serve", f"{SITE}/wandb/sdk/lib/loop.py", 5), *LOOP)
    assert judge(job(beside(waits, of_library), rank(1, IN_BARRIER, silent=200.0))).verdict == (
        "hang"
    )


@pytest.mark.parametrize(("sockets", "verdict"), [(1, "hang"), (2, "suspect")])
def test_a_loop_that_listens_may_bring_news(sockets: int, verdict: str) -> None:
    """By one socket without a name its own process wakes it; at a second one it listens."""
    stands: dict[str, Any] = {"waits_for": FUTEX, "syscall": 202}
    waits = rank(0, (MAIN, user("next_request", 9), EVENT_WAIT), silent=200.0, **stands)
    at = (WaitTarget(call="epoll_wait", kind="socket"),) * sockets
    serves = beside(waits, (user("serve", 3), *LOOP), waits_for=at)
    assert judge(job(serves, rank(1, IN_BARRIER, silent=200.0))).verdict == verdict


@pytest.mark.parametrize(("connected", "verdict"), [(True, "suspect"), (False, "hang")])
def test_a_loop_at_connections_may_answer_whoever_asks_its_process(
    connected: bool, verdict: str
) -> None:
    """No stack shows the coroutine that asks further; without a connection there is none."""
    wakes = WaitTarget(call="epoll_wait", kind="socket")
    remote = WaitTarget(call="epoll_wait", kind="socket", name="10.0.0.1:443")
    at = (wakes, remote) if connected else (wakes,)
    assert told(beside(rank(0, IN_BARRIER), LOOP, waits_for=at), 200.0) == verdict


SCHEDULER = (Frame("_main_loop", f"{SITE}/apscheduler/schedulers/blocking.py", 30), EVENT_WAIT)
TIMED: dict[str, Any] = {"waits_for": (WaitTarget(call="futex", kind="time"),), "syscall": 202}


def waits_for_news(*beside_it: ProcessLook) -> RankView:
    stands: dict[str, Any] = {"waits_for": FUTEX, "syscall": 202}
    frames = (MAIN, user("next_request", 9), EVENT_WAIT)
    return rank(0, frames, silent=200.0, children=list(beside_it), **stands)


@pytest.mark.parametrize(
    ("frames", "wakes", "verdict"),
    [
        (SCHEDULER, (9, 9, 9), "suspect"),
        (SCHEDULER, (1, 2, 3), "hang"),
        ((Frame("run", f"{SITE}/wandb/sdk/lib/timed.py", 5), EVENT_WAIT), (9, 9, 9), "hang"),
    ],
)
def test_a_librarys_scheduler_may_bring_news_later(
    frames: tuple[Frame, ...], wakes: tuple[int, ...], verdict: str
) -> None:
    """One that ticks has brought none, and a tracker's serves that alone."""
    waits = with_thread(waits_for_news(), frames, wakes, **TIMED)
    assert judge(job(waits, rank(1, IN_BARRIER, silent=200.0))).verdict == verdict


def test_a_timer_ends_a_wait_that_another_thread_may_not() -> None:
    child = look(IN_LOAD, pid=700, role="child", waits_for=FUTEX)
    reads = waiting_for("pipe", "read", "pipe:[9]", 700)
    listening = with_thread(waits_for_news(child), (user("listen", 3),), **reads)
    assert judge(job(listening, rank(1, IN_BARRIER, silent=200.0))).verdict == "hang"
    timed = with_thread(listening, TIMER, (9, 9, 9), tid=301, **TIMED)
    assert judge(job(timed, rank(1, IN_BARRIER, silent=200.0))).verdict == "suspect"


@pytest.mark.parametrize(("of_child", "verdict"), [((SLEEP,), "suspect"), (FUTEX, "hang")])
def test_a_librarys_pool_has_the_patience_of_its_processes(
    of_child: tuple[WaitTarget, ...], verdict: str
) -> None:
    child = look(IN_LOAD, pid=700, role="child", waits_for=of_child)
    manager = (
        Frame("wait_result", f"{SITE}/loky/process_executor.py", 640),
        Frame("wait", f"{STDLIB}/multiprocessing/connection.py", 947),
    )
    reads = waiting_for("pipe", "poll", "pipe:[9]", 700)
    waits = with_thread(waits_for_news(child), manager, **reads)
    assert judge(job(waits, rank(1, IN_BARRIER, silent=200.0))).verdict == verdict


def test_a_librarys_server_that_sleeps_may_answer_other_ranks() -> None:
    serves = (Frame("_fetch", f"{SITE}/weightsync/server.py", 12),)
    assert told(beside(rank(0, IN_BARRIER), serves, (9, 9, 9)), 200.0) == "suspect"
    assert told(beside(rank(0, IN_BARRIER), serves, (1, 2, 3)), 6.0) == "hang"


IN_POOL = (
    Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83),
    Frame("_WorkItem.run", f"{STDLIB}/concurrent/futures/thread.py", 58),
    Frame("get", f"{SITE}/requests/api.py", 73),
)


def test_what_a_pool_was_given_may_feed_a_pipe_whoever_wrote_it() -> None:
    pipe = waiting_for("pipe", "read", "pipe:[9]", 100)
    remote = (WaitTarget(call="recvfrom", kind="socket", name="10.0.0.1:443"),)
    assert told(beside(rank(0, IN_BARRIER), IN_POOL, waits_for=remote), 200.0, **pipe) == "suspect"
    of_library = (IN_POOL[-1],)
    assert told(beside(rank(0, IN_BARRIER), of_library, waits_for=remote), 6.0, **pipe) == "hang"


def test_one_that_ticks_beside_did_not_answer_when_it_woke() -> None:
    ticking = beside(rank(0, IN_BARRIER), wakes=(1, 2, 3))
    assert told(ticking, 20.0) == "suspect"
    assert told(ticking, 31.0) == "hang"


def test_one_that_asks_for_the_time_to_come_may_answer_then() -> None:
    """By its source it shuts a connection, or gives a lock back, once a condition holds."""

    def change(_: int, states: Any, stacks: Any) -> Any:
        return states, (stacks[0], *(replace(one, wakes=True) for one in stacks[1:]))

    ticking = changed_rank(beside(rank(0, IN_BARRIER), wakes=(1, 2, 3)), change)
    assert told(ticking, 200.0) == "suspect"


@pytest.mark.parametrize(
    ("frames", "state"),
    [
        ((Frame("TMonitor.run", f"{SITE}/tqdm/_monitor.py", 60),), {}),
        (ANSWER, {"waits_for": FUTEX, "syscall": 202}),
    ],
)
def test_a_library_s_thread_and_one_that_waits_for_its_own_process_answer_nobody(
    frames: tuple[Frame, ...], state: dict[str, Any]
) -> None:
    assert told(beside(rank(0, IN_BARRIER), frames, **state), 6.0) == "hang"


# Ranks in different collectives have parted for good where no thread may yet make the call.

HELPER = (user("prefetch", 12),)
QUEUE_GET = Frame("Queue.get", f"{STDLIB}/queue.py", 171)
CHILD = 700
FOR_CHILD = waiting_for("process", "wait4", str(CHILD), CHILD)
OF_CHILD = waiting_for("pipe", "read", "pipe:[9]", CHILD)
ACCEPTS = {"waits_for": (ACCEPT,)}
REMOTE = waiting_for("socket", "recvfrom", "10.0.0.9:443")
IN_NEWS = {"waits_for": FUTEX, "syscall": 202}
ASLEEP = {"waits_for": (SLEEP,)}


def parted(
    *threads: tuple[Any, ...],
    calls: bool | None,
    child: ProcessLook | None = None,
    nothing_new: float = 0.0,
    steps: bool = False,
) -> str:
    """What is told after 20 s where rank 1 has these threads: frames, state, when each wakes.

    One that steps is deeper in its code, at another line at each look.
    """
    saves = flying(rank(0, IN_SAVE, silent=20.0), "all_reduce 1", group="1", ranks=(0, 1))
    waits = rank(1, IN_BARRIER, silent=20.0, children=[child] if child is not None else [])
    for number, (frames, state, *wakes) in enumerate(threads):
        waits = with_thread(waits, frames, *wakes, tid=300 + number, **state)

    def step(number: int, states: Any, stacks: Any) -> Any:
        inner = (*HELPER, user("Env.step", 20 + number))
        return states, (stacks[0], replace(stacks[1], frames=inner))

    waits = replace(changed_rank(waits, step) if steps else waits, nothing_new_for_s=nothing_new)
    file, line = HELPER[0].file, HELPER[0].line
    known = {line: calls, **dict.fromkeys(range(20, 23), False)} if steps else {line: calls}
    notes = [CodeNote(file=file, line=at, collectives_ahead=one) for at, one in known.items()]
    case = job(saves, flying(waits, "barrier", ranks=(0, 1)))
    return judge(replace(case, code=tuple(notes))).verdict


def child(**state: Any) -> ProcessLook:
    return look(IN_LOAD, pid=CHILD, role="child", **state)


def test_a_helper_that_calls_no_collective_is_no_way_out() -> None:
    """A heartbeat that sleeps, a thread that reads what a child writes, a server."""
    for state in (ASLEEP, OF_CHILD, ACCEPTS, REMOTE, {"state": "R", "waits_for": ()}):
        told = parted((HELPER, state), calls=False, child=child(**ASLEEP))
        assert told == "hang", state


@pytest.mark.parametrize("calls", [True, None])
@pytest.mark.parametrize("waits", [FOR_CHILD, OF_CHILD])
def test_one_that_waits_for_a_child_may_call_it_when_that_ends(
    waits: dict[str, Any], calls: bool | None
) -> None:
    assert parted((HELPER, waits), calls=calls, child=child(**ASLEEP)) == "suspect"
    assert parted((HELPER, waits), calls=calls, child=child(cpu=1.0)) != "hang"


def test_a_child_that_waits_for_the_rank_itself_brings_nothing() -> None:
    waits_back = child(**waiting_for("pipe", "read", "pipe:[8]", 101))
    assert parted((HELPER, FOR_CHILD), calls=None, child=waits_back) == "suspect"
    ends_it = waiting_for("pipe", "read", "pipe:[9]", 101)
    assert parted((HELPER, ends_it), calls=True) == "hang", "the other end is its own"


def test_one_that_waits_for_news_is_told_by_who_could_bring_them() -> None:
    """A queue that a second thread fills once it wakes, or that nobody fills any more."""
    takes = (*HELPER, QUEUE_GET), IN_NEWS
    fills = (user("feed", 40),), ASLEEP, (9, 9, 9)
    assert parted(takes, calls=True) == "hang"
    assert parted(takes, fills, calls=True) == "suspect"


def test_one_that_wakes_and_goes_back_to_sleep_may_still_call_what_its_code_names() -> None:
    polls = HELPER, ASLEEP, (1, 2, 3)
    assert parted(polls, calls=True) == "suspect"
    assert parted(polls, calls=None) == "hang"


def test_what_an_outsider_may_bring_counts_only_for_one_that_is_known_to_call() -> None:
    for waits in (ACCEPTS, REMOTE):
        assert parted((HELPER, waits), calls=True) == "suspect"
        assert parted((HELPER, waits), calls=None) == "hang"
    polls = {"waits_for": (STORE, WaitTarget(call="poll", kind="time"))}
    assert parted((HELPER, polls), calls=None) == "hang", "it asks for a key, and does not sleep"
    assert parted((TIMER, ASLEEP), calls=None) == "hang"


def test_a_helper_in_a_framework_that_trains_may_call_one() -> None:
    """An asynchronous save of torch's; the threads of other libraries make no such calls."""
    saves = (torch("_do_save", "distributed/checkpoint/async_executor.py"),)
    assert parted((saves, ASLEEP, (9, 9, 9)), calls=None) == "suspect"
    uploads = (Frame("run", f"{SITE}/wandb/sdk/upload.py", 5),)
    assert parted((uploads, ASLEEP, (9, 9, 9)), calls=None) == "hang"


def test_one_that_goes_round_without_a_call_excuses_nobody() -> None:
    """An actor that steps an environment for ever."""
    steps: Any = HELPER, {"state": "R", "waits_for": ()}
    assert parted(steps, calls=None) == "healthy"
    assert parted(steps, calls=None, nothing_new=15.0) == "healthy", "in one long call"
    assert parted(steps, calls=None, steps=True) == "healthy"
    assert parted(steps, calls=None, nothing_new=15.0, steps=True) == "hang"
    assert parted(steps, calls=True, nothing_new=15.0, steps=True) == "suspect", "it may yet call"


def test_a_timer_that_runs_tells_more_than_the_connections_of_a_loop_nobody_asked() -> None:
    """A service in a thread of the rank keeps a connection open, to nobody who is waited for."""
    stands: dict[str, Any] = {"waits_for": FUTEX, "syscall": 202}
    waits = rank(0, (MAIN, user("fetch", 9), EVENT_WAIT), silent=12.0, **stands)
    client = WaitTarget(call="epoll_wait", kind="socket", name="127.0.0.1:7000")
    waker = WaitTarget(call="epoll_wait", kind="socket")
    serves = with_thread(waits, (user("serve", 20), *LOOP), waits_for=(waker, client))
    others = rank(1, IN_BARRIER, silent=12.0)
    assert judge(job(serves, others)).cause == "network_wait"
    limited = (*FUTEX, WaitTarget(call="futex", kind="time"))
    timed = with_thread(serves, TIMER, tid=207, waits_for=limited, syscall=202)
    verdict = judge(job(timed, others))
    assert (verdict.verdict, verdict.cause) == ("suspect", "rank_stalled")
    assert "in fetch (demo/train.py:9)" in verdict.summary
