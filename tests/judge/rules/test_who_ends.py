"""Who could end a wait is told by what stands at its end, from process to process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    FUTEX,
    IN_BARRIER,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    SITE,
    STDLIB,
    changed,
    changed_rank,
    job,
    look,
    rank,
    user,
    waiting_for,
    with_threads,
    worker,
)
from msgspec.structs import replace

from lightning_hangcheck.judge.graph import build_graph
from lightning_hangcheck.judge.job import read_job
from lightning_hangcheck.judge.operations import awaited_ranks, pending_collectives
from lightning_hangcheck.judge.patience import Patience
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.evidence import Frame, Holder, ThreadStack, ThreadState, WaitTarget

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

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
