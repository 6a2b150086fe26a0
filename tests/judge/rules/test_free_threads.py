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
    job,
    rank,
    torch,
    user,
    waiting_for,
)
from cases import beside as with_thread
from flights import flying

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Frame, WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

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
IN_SAVE = (user("save", 31), torch("all_reduce"))
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


def test_one_of_main_threads_may_be_met_by_a_thread_that_wakes_later() -> None:
    saves, waits = rank(0, IN_SAVE, silent=20.0), rank(1, IN_BARRIER, silent=20.0)
    assert _met_by(saves, waits) == "hang"
    assert _met_by(saves, beside(waits, wakes=(9, 9, 9))) == "suspect"
    assert _met_by(saves, beside(waits, wakes=(1, 2, 3))) == "hang", "it woke, and made no call"
    assert _met_by(saves, beside(waits, state="R", waits_for=())) != "hang"
    assert _met_by(saves, beside(waits, waits_for=(ACCEPT,))) == "hang"
    polls = {"waits_for": (STORE, WaitTarget(call="poll", kind="time"))}
    assert _met_by(saves, beside(waits, **polls)) == "hang", "it asks for a key, and does not sleep"
    assert _met_by(saves, beside(waits, TIMER)) == "hang"


def _met_by(first: RankView, other: RankView) -> str:
    """What is told where two ranks wait in collectives of two groups."""
    in_group = flying(first, "all_reduce 1", group="1", ranks=(0, 1))
    return judge(job(in_group, flying(other, "barrier", ranks=(0, 1)))).verdict


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


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("read", "anon_inode:inotify"),
        ("read", "anon_inode:[timerfd]"),
        ("rt_sigtimedwait", ""),
        ("pause", ""),
        ("rt_sigsuspend", ""),
    ],
)
def test_what_others_may_bring_is_waited_for_longer(call: str, name: str) -> None:
    waits = rank(0, IN_LOAD, silent=200.0, **waiting_for("other", call, name))
    assert judge(job(waits, rank(1, IN_BARRIER, silent=200.0))).verdict == "suspect"


def test_one_that_ticks_beside_did_not_answer_when_it_woke() -> None:
    ticking = beside(rank(0, IN_BARRIER), wakes=(1, 2, 3))
    assert told(ticking, 20.0) == "suspect"
    assert told(ticking, 31.0) == "hang"


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
