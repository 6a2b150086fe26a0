"""Who could end a wait: what stands at its end, and the free threads that may act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    C10D,
    FUTEX,
    IN_BARRIER,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    MAIN,
    NOW_NS,
    SECOND,
    SITE,
    STDLIB,
    changed,
    changed_rank,
    job,
    look,
    rank,
    torch,
    user,
    waiting_for,
    with_threads,
    worker,
)
from cases import beside as with_thread
from flights import flying
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.graph import build_graph
from lightning_hangcheck.judge.job import read_job
from lightning_hangcheck.judge.operations import awaited_ranks, pending_collectives
from lightning_hangcheck.judge.patience import Patience
from lightning_hangcheck.model.case import CodeNote, Pace
from lightning_hangcheck.model.evidence import Frame, Holder, ThreadStack, ThreadState, WaitTarget

if TYPE_CHECKING:
    from cases import Frames

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import ProcessLook

WAITS = rank(0, IN_BARRIER)
SLEEPS = {"waits_for": (WaitTarget(call="clock_nanosleep", kind="time"),)}
ASKS_REMOTE = waiting_for("socket", "recvfrom", "10.0.0.1:443")
FAST = Pace(longest_pause_s=0.5, pauses=9)


def ended_by(culprit: RankView) -> str:
    """Who could end what rank 1 waits for, where rank 0 waits for it."""
    reading = read_job(job(WAITS, culprit))
    awaited = awaited_ranks(reading, pending_collectives(reading))
    patience = Patience(reading, build_graph(reading, None, awaited).circles)
    return patience.who_ends([reading.ranks[1]])


@pytest.mark.parametrize(
    ("waits", "who"),
    [
        ({"waits_for": FUTEX}, "inside"),
        ({"waits_for": ()}, "outside"),
        (SLEEPS, "outside"),
        (ASKS_REMOTE, "outside"),
        (waiting_for("socket", "accept4", "127.0.0.1:80"), "outside"),
        (waiting_for("terminal", "read", "/dev/pts/1"), "person"),
        (waiting_for("terminal", "pselect6", "/dev/pts/1"), "person"),  # pdb, by readline
        (waiting_for("terminal", "epoll_wait", "/dev/pts/1"), "inside"),
        (waiting_for("lock", "flock", "/l", 4711), "inside"),
        (waiting_for("lock", "flock", "/l"), "outside"),
        (waiting_for("file", "write", "/nfs/a.ckpt"), "outside"),
        (waiting_for("fifo", "open", "/data/fifo"), "outside"),
        (waiting_for("pipe", "read", "pipe:[9]", 101), "nobody"),
        (waiting_for("pipe", "read", "pipe:[9]"), "outside"),
        (waiting_for("pipe", "read", "pipe:[9]", 4711), "outside"),  # a daemon
        (waiting_for("fifo", "read", "/data/fifo", 101), "outside"),
        (waiting_for("process", "wait4", "700", 700), "outside"),
        (waiting_for("shared", "futex", "memory:[00:1c:8]", 100), "inside"),
        (waiting_for("shared", "futex", "memory:[00:1c:8]", 100, 4711), "outside"),  # a launcher
        (waiting_for("shared", "futex", ""), "outside"),
        (waiting_for("other", "read", "anon_inode:inotify"), "outside"),
        (waiting_for("other", "rt_sigtimedwait", ""), "outside"),
    ],
)
def test_an_idle_rank_is_told_by_what_the_kernel_shows(waits: dict[str, Any], who: str) -> None:
    assert ended_by(rank(1, IN_LOAD, **waits)) == who


def test_of_several_things_that_could_end_a_wait_the_most_patient_counts() -> None:
    lock = waiting_for("lock", "poll", "/l", 4711)["waits_for"]
    remote = ASKS_REMOTE["waits_for"]
    assert ended_by(rank(1, IN_LOAD, waits_for=(*lock, *remote))) == "outside"


@pytest.mark.parametrize(
    ("of_child", "who"),
    [
        ({"waits_for": FUTEX}, "inside"),
        (SLEEPS, "outside"),
        (ASKS_REMOTE, "outside"),
        (waiting_for("pipe", "read", "pipe:[9]", 101), "nobody"),
        ({"state": "T"}, "person"),
        ({"state": "Z"}, "nobody"),
        ({"cpu": 1.0}, "unknown_pace"),
    ],
)
@pytest.mark.parametrize(
    "waits",
    [waiting_for("process", "wait4", "700", 700), waiting_for("pipe", "read", "pipe:[8]", 700)],
)
def test_a_wait_for_a_child_is_told_by_what_the_child_waits_for(
    waits: dict[str, Any], of_child: dict[str, Any], who: str
) -> None:
    child = look(IN_LOAD, pid=700, role="child", **of_child)
    assert ended_by(rank(1, IN_LOAD, children=[child], **waits)) == who
    semaphore = waiting_for("shared", "futex", "memory:[00:1c:8]", 700)
    at_least = "inside" if who in ("nobody", "person") else who
    assert ended_by(rank(1, IN_LOAD, children=[child], **semaphore)) == at_least


def test_a_computation_is_told_by_whether_it_goes_round_and_its_pace() -> None:
    assert ended_by(rank(1, IN_LOAD, cpu=1.0, pace=FAST, goes_round=True)) == "known_pace"
    assert ended_by(rank(1, IN_LOAD, cpu=1.0, pace=FAST)) == "unknown_pace"
    assert ended_by(rank(1, IN_LOAD, cpu=1.0, goes_round=True)) == "circles"
    assert ended_by(rank(1, IN_LOAD, cpu=1.0)) == "unknown_pace"
    cropping = (*IN_GETITEM, user("crop", 9, "data.py"))
    loops = worker(0, IN_GETITEM, cropping, IN_GETITEM, cpu=1.0)
    circling = replace(rank(1, IN_LOADER, children=[loops]), nothing_new_for_s=9.0)
    assert ended_by(circling) == "circles"


@pytest.mark.parametrize(
    ("joined", "who"), [((101,), "nobody"), ((700,), "unknown_pace"), ((4712,), "outside")]
)
def test_a_launcher_uses_no_pipe_before_what_it_joins_goes_on(
    joined: tuple[int, ...], who: str
) -> None:
    """The writer itself, a child that computes, or a stranger."""
    launcher = Holder(pid=4711, awaits=joined)
    full = WaitTarget(call="write", kind="pipe", name="pipe:[9]", holders=(launcher,))
    child = look(IN_LOAD, pid=700, role="child", cpu=1.0)
    assert ended_by(rank(1, IN_LOAD, waits_for=(full,), children=[child])) == who


@pytest.mark.parametrize("holds", [SLEEPS, {"waits_for": ()}])
def test_an_idle_process_that_keeps_a_lock_has_the_patience_of_the_jobs_own(
    holds: dict[str, Any],
) -> None:
    """Whether a rank happened to start it or not."""
    holder = look(IN_LOAD, pid=700, role="child", **holds)
    waits = waiting_for("lock", "flock", "/l", 700)
    assert ended_by(rank(1, IN_LOAD, children=[holder], **waits)) == "inside"
    fetches = look(IN_LOAD, pid=700, role="child", **ASKS_REMOTE)
    assert ended_by(rank(1, IN_LOAD, children=[fetches], **waits)) == "outside"
    # a tool whose main thread waits for the one that fetches
    fetching = changed(holder, lambda _, states, stacks: ((*states, ANSWERS_LATER), stacks))
    assert ended_by(rank(1, IN_LOAD, children=[fetching], **waits)) == "outside"


@pytest.mark.parametrize(("sleeps_s", "who"), [(250, "outside"), (1_000, "inside")])
def test_a_child_that_keeps_a_lock_and_will_soon_wake_ends_the_wait(
    sleeps_s: int, who: str
) -> None:
    holder = changed(
        look(IN_LOAD, pid=700, role="child", **SLEEPS),
        lambda _, states, stacks: (
            (replace(states[0], wakes_ns=NOW_NS + sleeps_s * SECOND),),
            stacks,
        ),
    )
    waits = waiting_for("lock", "flock", "/l", 700)
    assert ended_by(rank(1, IN_LOAD, children=[holder], **waits)) == who


@pytest.mark.parametrize(
    ("name", "waits", "who"),
    [
        ("python", WaitTarget(call="futex", kind="time"), "outside"),
        ("grpc_poller", WaitTarget(call="epoll_wait", kind="socket"), "outside"),
        ("loader", WaitTarget(call="read", kind="pipe", holders=(Holder(pid=700),)), "outside"),
        ("loader", WaitTarget(call="read", kind="pipe", holders=(Holder(pid=101),)), "inside"),
        ("converter", WaitTarget(call="wait4", kind="process", name="700"), "outside"),
        (
            "tokio-runtime-w",
            WaitTarget(call="epoll_wait", kind="other", name="eventfd:[7]"),
            "inside",
        ),
        ("rayon", FUTEX[0], "inside"),
        ("gloo_tcp_loop", WaitTarget(call="epoll_wait", kind="time"), "inside"),
        ("pt_nccl_watchdg", WaitTarget(call="futex", kind="time"), "inside"),
        # torch 2.5 named the main thread so, which another library has renamed since
        ("pt_main_thread", WaitTarget(call="recvfrom", kind="socket"), "outside"),
        ("", WaitTarget(call="futex", kind="time"), "inside"),  # recorded without names
        ("decoder", "R", "outside"),
        ("decoder", "D", "outside"),  # nobody knows what a call is for that no table names
        ("decoder", "Z", "inside"),
    ],
)
def test_a_native_thread_that_works_or_may_call_back_could_end_a_wait_for_news(
    name: str, waits: WaitTarget | str, who: str
) -> None:
    letter, targets = (waits, ()) if isinstance(waits, str) else ("S", (waits,))
    native = ThreadState(tid=299, name=name, state=letter, cpu_s=0.0, waits_for=targets)
    assert ended_by(_beside(rank(1, IN_LOAD, waits_for=FUTEX), native)) == who


ANSWERS_LATER = ThreadState(
    tid=799, name="engine", state="S", cpu_s=0.0, waits_for=SLEEPS["waits_for"]
)


def test_a_native_thread_may_feed_a_pipe_whatever_its_main_thread_waits_for() -> None:
    """A chess engine reads commands while it thinks; a library wakes its own process by a pipe."""
    commands = waiting_for("pipe", "read", "pipe:[8]", 101)
    child = look(IN_LOAD, pid=700, role="child", **commands)
    answers = waiting_for("pipe", "read", "pipe:[9]", 700)
    assert ended_by(rank(1, IN_LOAD, children=[child], **answers)) == "nobody"
    later = changed(child, lambda _, states, stacks: ((*states, ANSWERS_LATER), stacks))
    assert ended_by(rank(1, IN_LOAD, children=[later], **answers)) == "outside"
    own = rank(1, IN_LOAD, **waiting_for("pipe", "read", "pipe:[9]", 101))
    assert ended_by(own) == "nobody"
    assert ended_by(_beside(own, ANSWERS_LATER)) == "outside"


@pytest.mark.parametrize(
    ("name", "who"), [("pt_data_worker", "outside"), ("pt_autograd_0", "inside")]
)
def test_a_thread_that_nobody_named_has_the_name_of_its_worker(name: str, who: str) -> None:
    """Torch names a DataLoader's workers, and a library's decoder inherits that."""
    reads = WaitTarget(call="read", kind="file", name="/data/clip.mp4")
    native = ThreadState(tid=900, name=name, state="D", cpu_s=0.0, waits_for=(reads,))
    named = changed(
        worker(0, IN_GETITEM, waits_for=FUTEX),
        lambda _, states, stacks: ((replace(states[0], name="pt_data_worker"), native), stacks),
    )
    assert ended_by(rank(1, IN_LOADER, children=[named])) == who


WORD = waiting_for("shared", "futex", "memory:[00:1c:8]")
IN_SEMAPHORE = (*IN_LOAD, Frame("Event.wait", f"{STDLIB}/multiprocessing/synchronize.py", 349))


def test_a_word_of_shared_memory_is_the_jobs_own_only_in_a_lock_of_pythons() -> None:
    """What a library in C waits for there, a simulator that nobody knows may bring."""
    assert ended_by(rank(1, IN_SEMAPHORE, **WORD)) == "inside"
    assert ended_by(rank(1, IN_LOAD, **WORD)) == "outside"


@pytest.mark.parametrize(
    ("inside", "of_child", "who"),
    [
        (None, {"waits_for": ()}, "unknown_pace"),
        ((), {"waits_for": FUTEX}, "inside"),
        (("spawn.py",), ASKS_REMOTE, "outside"),
        (("spawn.py",), {"cpu": 1.0}, "unknown_pace"),
        (("spawn.py", "process.py"), ASKS_REMOTE, "inside"),
        (("spawn.py",), {"state": "Z"}, "inside"),
    ],
)
def test_a_process_that_is_being_started_may_yet_give_the_word(
    inside: tuple[str, ...] | None, of_child: dict[str, Any], who: str
) -> None:
    """It imports the main module before it takes what it was given, and only then shares that."""
    begun = [Frame("_main", f"{STDLIB}/multiprocessing/{file}", 9) for file in inside or ()]
    stacks = [(*begun, *IN_LOAD)] if inside is not None else []  # nothing is seen of it yet
    child = look(*stacks, pid=700, role="worker", **of_child)
    assert ended_by(rank(1, IN_SEMAPHORE, children=[child], **WORD)) == who


def _beside(view: RankView, *threads: ThreadState) -> RankView:
    return changed_rank(view, lambda _, states, stacks: ((*states, *threads), stacks))


@pytest.mark.parametrize(
    ("file", "who"),
    [
        (f"{STDLIB}/socketserver.py", "outside"),
        (f"{SITE}/paho/mqtt/client.py", "outside"),
        (f"{SITE}/wandb/sdk/lib/sock_client.py", "inside"),
        (f"{STDLIB}/multiprocessing/connection.py", "outside"),
    ],
)
def test_a_librarys_thread_at_a_connection_could_bring_news_but_for_its_own(
    file: str, who: str
) -> None:
    in_event = (*IN_LOAD, Frame("Event.wait", f"{STDLIB}/threading.py", 622))
    hears = ThreadStack(tid=201, frames=(Frame("loop", file, 1),))
    view = with_threads(rank(1, in_event), hears, takes_lock=False)
    reads = (WaitTarget(call="recvfrom", kind="socket", name="10.0.0.1:1883"),)
    view = changed_rank(
        view, lambda _, states, stacks: ((states[0], replace(states[1], waits_for=reads)), stacks)
    )
    assert ended_by(view) == who


# A circle of waits is closed only where no free thread of its processes may open it.

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


NO_LIMIT: dict[str, Any] = {"waits_for": FUTEX, "syscall": 202}
TIMED: dict[str, Any] = {"waits_for": (WaitTarget(call="futex", kind="time"),), "syscall": 202}
WAKER = WaitTarget(call="epoll_wait", kind="socket")
CLIENT = WaitTarget(call="epoll_wait", kind="socket", name="10.0.0.1:443")
PIPE = waiting_for("pipe", "read", "pipe:[9]", 100)
LIBRARYS = (Frame("get", f"{SITE}/requests/api.py", 73),)
IN_POOL = (
    Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83),
    Frame("_WorkItem.run", f"{STDLIB}/concurrent/futures/thread.py", 58),
    *LIBRARYS,
)
COPIES = (Frame("copyfileobj", f"{STDLIB}/shutil.py", 197),)
TRACKERS = (Frame("_read", f"{SITE}/wandb/sdk/lib/sock_client.py", 73),)
SCHEDULED = (Frame("scheduler.run", f"{STDLIB}/sched.py", 149),)
FETCHES = (*IN_POOL[:2], Frame("urlopen", f"{STDLIB}/urllib/request.py", 216))
SERVER = (Frame("_fetch", f"{SITE}/weightsync/server.py", 12),)
ASLEEP = {"waits_for": (SLEEP,)}
OF_CHILD = waiting_for("pipe", "read", "pipe:[9]", 700)
REMOTE = waiting_for("socket", "recvfrom", "10.0.0.9:443")


def beside(
    view: RankView, frames: Frames = ANSWER, wakes: tuple[int, ...] = (), **state: Any
) -> RankView:
    """The rank with a thread that serves others, and sleeps."""
    return with_thread(view, frames, wakes, **{**ASLEEP, **state})


def told(serving: RankView, silent: float, **asking: Any) -> str:
    """What is told where rank 1 asks rank 0 at a connection, and that waits for it."""
    fields = asking or waiting_for("socket", "recvfrom", "127.0.0.1:80", 100)
    return judge(job(serving, rank(1, IN_LOAD, silent=silent, **fields))).verdict


@pytest.mark.parametrize(
    ("frames", "wakes", "state", "silent", "verdict"),
    [
        # one of the process that is asked may answer
        (ANSWER, (), {}, 200.0, "suspect"),
        (ANSWER, (), {"state": "R", "waits_for": ()}, 200.0, "healthy"),
        (ANSWER, (), {"waits_for": (ACCEPT,)}, 200.0, "suspect"),
        (ANSWER, (), waiting_for("process", "wait4", "700", 700), 25.0, "suspect"),
        # one that ticks may, but not one that waits for its own process
        (ANSWER, (1, 2, 3), {}, 200.0, "suspect"),
        (ANSWER, (), NO_LIMIT, 6.0, "hang"),
        # a loop at connections may: no stack shows the coroutine that asks further
        (LOOP, (), {"waits_for": (WAKER, CLIENT)}, 200.0, "suspect"),
        (LOOP, (), {"waits_for": (WAKER,)}, 200.0, "hang"),
        # so may a library's server that sleeps, but none that only looks after itself
        (SERVER, (9, 9, 9), {}, 200.0, "suspect"),
        (SERVER, (1, 2, 3), {}, 200.0, "suspect"),
        ((Frame("TMonitor.run", f"{SITE}/tqdm/_monitor.py", 60),), (), {}, 6.0, "hang"),
    ],
)
def test_a_thread_of_the_one_that_is_asked_may_answer(
    frames: Frames, wakes: tuple[int, ...], state: dict[str, Any], silent: float, verdict: str
) -> None:
    assert told(beside(rank(0, IN_BARRIER), frames, wakes, **state), silent) == verdict


@pytest.mark.parametrize(
    "held",
    [
        PIPE,
        waiting_for("lock", "flock", "/data/cache.lock", 100),
        waiting_for("fifo", "read", "/data/fifo", 100),
    ],
)
def test_whatever_the_other_holds_any_thread_of_it_may_bring(held: dict[str, Any]) -> None:
    assert told(rank(0, IN_BARRIER), 6.0, **held) == "hang"
    assert told(beside(rank(0, IN_BARRIER)), 200.0, **held) == "suspect"


LIMITED = {"waits_for": (*PIPE["waits_for"], WaitTarget(call="poll", kind="time"))}
NAMED = waiting_for("shared", "futex", "/dev/shm/sem.go", 100)  # noqa: S108 - as the kernel says
LATE = (user("later", 30),)


def test_a_wait_that_ends_at_a_time_is_no_circle() -> None:
    """A poll's limit, or an alarm by which a program ends what takes it too long."""
    asking = rank(1, IN_LOAD, silent=200.0, **PIPE)
    assert told(rank(0, IN_BARRIER), 200.0, **LIMITED) == "suspect"
    for alarm, verdict in ((False, "hang"), (True, "suspect")):
        own = asking.processes[0]
        samples = [
            replace(one, kernel=replace(one.kernel, catches_alarm=alarm)) for one in own.samples
        ]
        view = replace(asking, processes=(replace(own, samples=tuple(samples)),))
        assert judge(job(rank(0, IN_BARRIER), view)).verdict == verdict


def test_what_has_a_path_any_program_may_open() -> None:
    assert told(rank(0, IN_BARRIER), 200.0, **NAMED) == "suspect"


@pytest.mark.parametrize("held", [PIPE, waiting_for("shared", "futex", "memory:[0:9]", 100)])
def test_its_own_threads_may_bring_what_another_process_has_too(held: dict[str, Any]) -> None:
    asks = rank(1, IN_LOAD, silent=200.0, **held)
    assert judge(job(rank(0, IN_BARRIER), asks)).verdict == "hang"
    assert judge(job(rank(0, IN_BARRIER), beside(asks, LATE))).verdict == "suspect"


def test_any_thread_may_end_a_call_of_which_nothing_tells_who_does() -> None:
    """A queue in C: no frame of the interpreter's library shows for what it waits."""
    asks = rank(1, IN_LOAD, silent=200.0, **NO_LIMIT)
    peer = rank(0, IN_BARRIER, silent=200.0)
    assert judge(job(peer, asks)).verdict == "hang"
    assert judge(job(peer, beside(asks, LATE))).verdict == "suspect"


def test_any_thread_may_feed_a_pipe_whoever_wrote_it() -> None:
    for frames in (IN_POOL, LIBRARYS, COPIES):
        assert told(beside(rank(0, IN_BARRIER), frames, **REMOTE), 200.0, **PIPE) == "suspect"
    assert told(beside(rank(0, IN_BARRIER), TRACKERS, **REMOTE), 6.0, **PIPE) == "hang"
    assert told(beside(rank(0, IN_BARRIER), SCHEDULED), 200.0, **PIPE) == "suspect"


def test_one_that_ticks_and_by_its_source_answers_nobody_ends_no_wait() -> None:
    """It did not when it woke."""

    def change(_: int, states: Any, stacks: Any) -> Any:
        return states, (stacks[0], *(replace(one, bystander=True) for one in stacks[1:]))

    ticking = changed_rank(beside(rank(0, IN_BARRIER), wakes=(1, 2, 3)), change)
    assert told(ticking, 20.0) == "suspect"
    assert told(ticking, 31.0) == "hang"


def test_a_process_that_meets_those_of_other_ranks_waits_for_these() -> None:
    """As those in which a distributed checkpoint is saved beside the ranks."""

    def saves(number: int, *inside: Frame, **state: Any) -> RankView:
        begun = (Frame("run", f"{STDLIB}/multiprocessing/process.py", 108), user("save", 9))
        saver = look((*begun, *inside), pid=700 + number, role="worker", **state)
        asks = waiting_for("pipe", "read", f"pipe:[{number}]", 700 + number)
        return rank(number, IN_LOAD, children=[saver], silent=31.0, **asks)

    meets = saves(0, Frame("gather", C10D, 9), waits_for=FUTEX)
    stores = judge(job(meets, saves(1, user("write", 7, "store.py"), **ASKS_REMOTE)))
    assert (stores.verdict, stores.culprits) == ("suspect", (1,))
    locked = judge(job(meets, saves(1, user("write", 7, "store.py"), waits_for=FUTEX)))
    assert (locked.verdict, locked.culprits) == ("hang", (1,))
    assert judge(job(meets, rank(1, IN_LOAD, silent=31.0, **ASKS_REMOTE))).verdict == "suspect"


def test_what_source_shows_as_a_file_may_be_the_fifo_that_another_reads() -> None:
    fifo = waiting_for("fifo", "read", "/data/fifo", 100)
    ticking = beside(rank(0, IN_BARRIER), wakes=(1, 2, 3))
    assert told(ticking, 31.0, **fifo) == "suspect"

    def change(_: int, states: Any, stacks: Any) -> Any:
        return states, (stacks[0], *(replace(one, bystander=True) for one in stacks[1:]))

    assert told(changed_rank(ticking, change), 31.0, **fifo) == "suspect"


# A rank that waits in its own memory, for a lock or for news, until a thread of it acts.


def waits_in(inner: Frame, *children: ProcessLook, silent: float = 200.0) -> RankView:
    frames = (MAIN, user("fetch", 9), inner)
    return rank(0, frames, silent=silent, children=list(children), **NO_LIMIT)


def waited_for(waits: RankView) -> str:
    return judge(job(waits, rank(1, IN_BARRIER, silent=waits.silent_for_s))).verdict


def test_a_timer_may_end_whatever_its_process_waits_for() -> None:
    """A lock that it gives back later; so may an event loop that is to do something then."""
    waits = waits_in(LOCK)
    assert waited_for(waits) == "hang"
    assert waited_for(beside(waits, TIMER)) == waited_for(beside(waits, LOOP)) == "suspect"
    of_library = (Frame("serve", f"{SITE}/wandb/sdk/lib/loop.py", 5), *LOOP)
    assert waited_for(beside(waits, of_library)) == "hang"


SCHEDULER = (Frame("_main_loop", f"{SITE}/apscheduler/schedulers/blocking.py", 30), EVENT_WAIT)


@pytest.mark.parametrize(
    ("frames", "wakes", "state", "verdict"),
    [
        # by one socket without a name its own process wakes a loop; at a second one it listens
        ((user("serve", 3), *LOOP), (), {"waits_for": (WAKER,)}, "hang"),
        ((user("serve", 3), *LOOP), (), {"waits_for": (WAKER, WAKER)}, "suspect"),
        # a scheduler may bring news later, even if it has not yet; a tracker's serves it alone
        (SCHEDULER, (9, 9, 9), TIMED, "suspect"),
        (SCHEDULER, (1, 2, 3), TIMED, "suspect"),
        ((Frame("run", f"{SITE}/wandb/sdk/timed.py", 5), EVENT_WAIT), (9, 9, 9), TIMED, "hang"),
    ],
)
def test_a_loop_that_listens_and_a_librarys_scheduler_may_bring_news(
    frames: Frames, wakes: tuple[int, ...], state: dict[str, Any], verdict: str
) -> None:
    assert waited_for(with_thread(waits_in(EVENT_WAIT), frames, wakes, **state)) == verdict


def test_a_timer_ends_a_wait_that_another_thread_may_not() -> None:
    child = look(IN_LOAD, pid=700, role="child", waits_for=FUTEX)
    listening = with_thread(waits_in(EVENT_WAIT, child), (user("listen", 3),), **OF_CHILD)
    assert waited_for(listening) == "hang"
    assert waited_for(with_thread(listening, TIMER, (9, 9, 9), tid=301, **TIMED)) == "suspect"


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
    assert waited_for(with_thread(waits_in(EVENT_WAIT, child), manager, **reads)) == verdict


def test_a_timer_that_runs_tells_more_than_the_connections_of_a_loop_nobody_asked() -> None:
    """A service in a thread of the rank keeps a connection open, to nobody who is waited for."""
    waits = waits_in(EVENT_WAIT, silent=12.0)
    serves = with_thread(waits, (user("serve", 20), *LOOP), waits_for=(WAKER, CLIENT))
    others = rank(1, IN_BARRIER, silent=12.0)
    assert judge(job(serves, others)).cause == "network_wait"
    limited = (*FUTEX, *TIMED["waits_for"])
    timed = with_thread(serves, TIMER, tid=207, waits_for=limited, syscall=202)
    verdict = judge(job(timed, others))
    assert (verdict.verdict, verdict.cause) == ("suspect", "rank_stalled")
    assert "in fetch (demo/train.py:9)" in verdict.summary


# Ranks in different collectives have parted for good where no thread may yet make the call.

HELPER = (user("prefetch", 12),)
QUEUE_GET = Frame("Queue.get", f"{STDLIB}/queue.py", 171)
FOR_CHILD = waiting_for("process", "wait4", "700", 700)
ACCEPTS = {"waits_for": (ACCEPT,)}


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
    return look(IN_LOAD, pid=700, role="child", **state)


ASKS_STORE = {"waits_for": (STORE, WaitTarget(call="poll", kind="time"))}
RUNS: dict[str, Any] = {"state": "R", "waits_for": ()}
TAKES = (*HELPER, QUEUE_GET), NO_LIMIT
SAVES = (torch("_do_save", "distributed/checkpoint/async_executor.py"),)
UPLOADS = (Frame("run", f"{SITE}/wandb/sdk/upload.py", 5),)


@pytest.mark.parametrize(
    ("threads", "calls", "of_child", "verdict"),
    [
        # one whose code calls no collective is no way out: a heartbeat, a reader, a server
        *([[(HELPER, state)], False, ASLEEP, "hang"] for state in (ASLEEP, OF_CHILD, ACCEPTS)),
        *([[(HELPER, state)], False, ASLEEP, "hang"] for state in (REMOTE, RUNS)),
        # one that waits for a child may call it when that ends, but brings nothing to itself
        *([[(HELPER, FOR_CHILD)], calls, ASLEEP, "suspect"] for calls in (True, None)),
        *([[(HELPER, OF_CHILD)], calls, ASLEEP, "suspect"] for calls in (True, None)),
        *([[(HELPER, FOR_CHILD)], calls, {"cpu": 1.0}, "healthy"] for calls in (True, None)),
        *([[(HELPER, OF_CHILD)], calls, {"cpu": 1.0}, "healthy"] for calls in (True, None)),
        ([(HELPER, FOR_CHILD)], None, waiting_for("pipe", "read", "pipe:[8]", 101), "hang"),
        ([(HELPER, waiting_for("pipe", "read", "pipe:[9]", 101))], True, None, "hang"),
        # a queue that a second thread fills once it wakes, or that nobody fills any more
        ([TAKES], True, None, "hang"),
        ([TAKES, ((user("feed", 40),), ASLEEP, (9, 9, 9))], True, None, "suspect"),
        # one that wakes and goes back to sleep may still call what its code names
        ([(HELPER, ASLEEP, (1, 2, 3))], True, None, "suspect"),
        ([(HELPER, ASLEEP, (1, 2, 3))], None, None, "hang"),
        # what an outsider may bring counts only for one that is known to call
        *([[(HELPER, state)], True, None, "suspect"] for state in (ACCEPTS, REMOTE)),
        *([[(HELPER, state)], None, None, "hang"] for state in (ACCEPTS, REMOTE)),
        # it asks for a key, and does not sleep; a timer's calls are no collectives
        ([(HELPER, ASKS_STORE)], None, None, "hang"),
        ([(TIMER, ASLEEP)], None, None, "hang"),
        # an event loop may run anything later
        ([(LOOP, TIMED, (9, 9, 9))], None, None, "suspect"),
        # so may what is called at the end of a task that waits for a remote end
        ([(FETCHES, REMOTE)], None, None, "suspect"),
        # an asynchronous save of torch's may call one, the threads of other libraries do not
        ([(SAVES, ASLEEP, (9, 9, 9))], None, None, "suspect"),
        ([(UPLOADS, ASLEEP, (9, 9, 9))], None, None, "hang"),
    ],
)
def test_who_may_still_call_a_collective(
    threads: list[tuple[Any, ...]], calls: bool | None, of_child: Any, verdict: str
) -> None:
    beside_it = child(**of_child) if of_child is not None else None
    assert parted(*threads, calls=calls, child=beside_it) == verdict


def test_one_that_goes_round_without_a_call_excuses_nobody() -> None:
    """An actor that steps an environment for ever."""
    steps: Any = HELPER, RUNS
    assert parted(steps, calls=None) == "healthy"
    assert parted(steps, calls=None, nothing_new=15.0) == "healthy", "in one long call"
    assert parted(steps, calls=None, steps=True) == "healthy"
    assert parted(steps, calls=None, nothing_new=15.0, steps=True) == "hang"
    assert parted(steps, calls=True, nothing_new=15.0, steps=True) == "suspect", "it may yet call"
