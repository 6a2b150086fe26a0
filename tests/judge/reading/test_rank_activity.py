"""What a process does is told by its samples alone; locks within it, and full memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_LOAD,
    LOCKED,
    MAIN,
    NOW_NS,
    SECOND,
    SITE,
    STDLIB,
    beside,
    changed_rank,
    job,
    look,
    rank,
    sample,
    torch,
    user,
    waiting_for,
    with_kernel,
    with_lock_owner,
    with_main,
    with_threads,
    worker,
)
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.activity import Activity, read_process_activity, read_rank_activity
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import (
    Frame,
    MemoryUse,
    ProcessLook,
    ThreadStack,
    ThreadState,
    WaitTarget,
)

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case


def activity_of(view: RankView) -> Activity:
    """What a rank does, in one word."""
    return read_rank_activity(view).activity


def _of_process(process: ProcessLook) -> Activity:
    return read_process_activity(process).activity


ELSEWHERE = (MAIN, user("save", 70))
OTHER_LINE = (MAIN, user("load", 42))
DEEPER = (*IN_LOAD, user("load", 41))
POLLING = (*IN_LOAD, Frame("acquire", f"{SITE}/filelock/_api.py", 1))
READ = 0
ONE, BOTH = look(IN_LOAD, samples=1), look(IN_LOAD).samples
AT_LOCK = waiting_for("futex", "futex", "0x7f10")
IN_HANDLER = (*IN_LOAD, user("on_alarm", 80))


@pytest.mark.parametrize(
    ("seen", "activity"),
    [
        (look(IN_LOAD), "idle"),
        (look(IN_LOAD, POLLING, IN_LOAD), "idle"),
        (look(IN_LOAD, OTHER_LINE), "moving"),
        (look(IN_LOAD, IN_HANDLER, waits_for=()), "moving"),
        (look(IN_LOAD, IN_HANDLER, **AT_LOCK), "idle"),  # a signal's, on top of the same wait
        (look(IN_LOAD, OTHER_LINE, **AT_LOCK), "moving"),
        (look(IN_LOAD, cpu=1.0), "busy"),
        (look(IN_LOAD, OTHER_LINE, IN_LOAD, cpu=1.0), "busy"),
        (look(IN_LOAD, DEEPER, IN_LOAD, cpu=1.0), "moving"),
        (look(IN_LOAD, ELSEWHERE, cpu=0.1), "moving"),
        (look(IN_LOAD, cpu=0.1), "busy"),
        (look(IN_LOAD, bytes_s=100_000), "moving"),
        (look(IN_LOAD, bytes_s=700), "idle"),
        (look(IN_LOAD, bytes_s=8_000, syscall=READ), "moving"),
        (look(IN_LOAD, bytes_s=700, syscall=READ), "idle"),
        (look(IN_LOAD, bytes_s=8_000, syscall=202), "idle"),
        (look(IN_LOAD, state="T"), "stopped"),
        (look(IN_LOAD, state="T", samples=1), "stopped"),
        (look(IN_LOAD, state="t", samples=1), "unseen"),
        (look(IN_LOAD, state="t"), "stopped"),
        (look(IN_LOAD, state="Z"), "gone"),
        (ONE, "unseen"),
        (ProcessLook(pid=1, role="rank"), "unseen"),
        (replace(ONE, samples=2 * ONE.samples), "unseen"),  # of the same moment
        (replace(ONE, samples=tuple(replace(s, kernel=None) for s in BOTH)), "unseen"),
        (replace(ONE, samples=tuple(replace(s, stack=None) for s in BOTH)), "unseen"),
    ],
)
def test_a_process_is_known_by_its_samples(seen: ProcessLook, activity: str) -> None:
    assert _of_process(seen) == activity


@pytest.mark.parametrize(("read", "activity"), [(390, "idle"), (2_000, "moving")])
def test_a_line_that_our_own_threads_read_between_two_looks_is_no_transfer(
    read: int, activity: str
) -> None:
    """Looks may come 0.2 s after each other."""
    waits = (WaitTarget(call="recvmsg", kind="socket"),)
    at_socket = {"state": "S", "waits_for": waits}
    first, second = (
        sample(IN_LOAD, NOW_NS + n * SECOND // 5, pid=1, cpu_s=0, read_bytes=n * read, **at_socket)
        for n in range(2)
    )
    seen = ProcessLook(pid=1, role="rank", samples=(first, second))
    assert _of_process(seen) == activity


@pytest.mark.parametrize(("carried", "activity"), [(0, "idle"), (4_000, "moving")])
def test_at_a_connection_only_what_connections_carried_is_a_transfer(
    carried: int, activity: str
) -> None:
    """Our own threads read 1,200 bytes in a second where they came late."""
    waits = rank(0, IN_LOAD, bytes_s=1_200, waits_for=(WaitTarget(call="poll", kind="socket"),))
    told = with_kernel(waits, network_bytes=lambda number, _: number * carried)
    assert activity_of(told) == activity


@pytest.mark.parametrize("newest", ["clock_nanosleep", "recvfrom", "on the processor"])
@pytest.mark.parametrize(
    ("turns", "read", "activity"),
    [(1_000, 0, "idle"), (1_000, 70_000, "idle"), (1_000, 200_000, "moving"), (10, 0, "moving")],
)
def test_small_questions_between_sleeps_are_no_transfer(
    newest: str, turns: int, read: int, activity: str
) -> None:
    """70 bytes for each turn on the processor are a poll, 7,000 what somebody loads at his pace.

    A server in the process itself, such as torch's store, reads them, too.
    """
    sleeps = (WaitTarget(call="clock_nanosleep", kind="time"),)
    at_newest = sleeps if newest in sleeps[0].call else (WaitTarget(call=newest, kind="socket"),)
    runs = newest == "on the processor"
    seen = with_main(
        rank(0, IN_LOAD, samples=2),
        turns=lambda number: number * turns,
        waits_for=lambda number: (sleeps, () if runs else at_newest)[number],
        state=lambda number: "R" if runs and number else "S",
    )
    asked = with_kernel(
        seen, network_bytes=lambda one, _: one * 70_000, read_bytes=lambda one, _: one * read
    )
    assert activity_of(asked) == activity


def _with_helper(*stacks: tuple[Frame, ...], cpu: float, state: str = "S") -> ProcessLook:
    """A rank whose main thread is idle, with one more thread that uses the processor."""

    def change(number: int, states: Any, threads: Any) -> Any:
        helper = ThreadState(tid=9, state=state, cpu_s=cpu * 1.1 * number)
        return (*states, helper), (*threads, ThreadStack(tid=9, frames=stacks[number]))

    view = changed_rank(rank(0, IN_LOAD, samples=len(stacks)), change)
    return with_kernel(view, cpu_s=lambda number, _: cpu * 1.1 * number).processes[0]


@pytest.mark.parametrize(
    ("cpu", "state", "activity"), [(0.12, "S", "idle"), (0.12, "R", "busy"), (0.01, "R", "idle")]
)
def test_a_helper_thread_that_is_ready_at_each_look_computes_on_a_crowded_machine(
    cpu: float, state: str, activity: str
) -> None:
    assert _of_process(_with_helper(*[IN_LOAD] * 3, cpu=cpu, state=state)) == activity


def test_a_thread_of_this_package_is_no_activity() -> None:
    ours = (Frame("run", f"{SITE}/lightning_hangcheck/recorder/background.py", 1),)
    also_ours = (*ours, Frame("wait", f"{STDLIB}/threading.py", 1))
    assert _of_process(_with_helper(ours, also_ours, ours, cpu=0.9)) == "busy"


def test_a_child_that_stirs_now_and_then_moves_its_rank_if_that_waits_for_it_alone() -> None:
    service = look((), pid=7, role="child")
    stirs = with_kernel(
        RankView(rank=0, processes=(service,)),
        read_bytes=lambda number, _: 0 if number == 0 else 10**6,
    )
    assert activity_of(rank(0, IN_LOAD, children=stirs.processes)) == "idle"
    waits = waiting_for("process", "wait4", "7", 7)
    assert activity_of(rank(0, IN_LOAD, children=stirs.processes, **waits)) == "moving"


def test_a_rank_that_beat_just_now_moves() -> None:
    beat = Beat(pid=100, beats=10, last_beat_ns=NOW_NS - SECOND // 2)
    assert activity_of(rank(0, IN_LOAD, silent=0.5, beat=beat)) == "moving"
    assert activity_of(rank(0, IN_LOAD, silent=5.0, beat=beat)) == "idle"


@pytest.mark.parametrize(
    ("turns_s", "states", "cpu", "queued", "activity"),
    [
        (500, "DD", 0.0, 0.0, "moving"),
        (500, "RD", 0.1, 0.0, "moving"),
        (500, "RR", 0.01, 0.1, "moving"),
        (500, "RR", 1.0, 0.0, "busy"),
        (500, "RR", 0.01, 0.9, "busy"),
        (500, "SS", 0.0, 0.0, "idle"),
        (500, "RS", 0.0, 0.0, "idle"),
        (1, "DD", 0.0, 0.0, "idle"),
        (None, "DD", 0.0, 0.0, "idle"),
    ],
)
def test_storage_that_answers_call_after_call_is_movement_and_a_poll_is_not(
    turns_s: int | None, states: str, cpu: float, queued: float, activity: str
) -> None:
    """In one line, seen twice, in these states: so many turns a second, None for not counted."""
    seen = with_main(
        rank(0, IN_LOAD, samples=2, cpu=cpu),
        state=lambda number: states[number],
        turns=lambda number: None if turns_s is None else number * 2 * turns_s,
        queued_s=lambda number: number * 1.1 * queued,
    )
    assert activity_of(seen) == activity


def test_a_child_that_only_holds_the_pipe_of_a_queue_excuses_nobody() -> None:
    """A fork copies every pipe. Who gave a queue anything has a thread that feeds it."""
    feeds = Frame("Queue._feed", f"{STDLIB}/multiprocessing/queues.py", 251)
    makes, encodes = worker(0, IN_LOAD), worker(1, IN_LOAD, DEEPER, ELSEWHERE, cpu=0.9)
    holds = waiting_for("pipe", "read", "pipe:[9]", makes.pid, encodes.pid)
    waits = rank(0, IN_LOAD, children=[makes, encodes], **holds)
    assert activity_of(waits) == "moving", "either may write"
    fed = beside(replace(waits, processes=(makes,)), (feeds,)).processes[0]
    waits = replace(waits, processes=(waits.processes[0], fed, encodes))
    assert activity_of(waits) == "idle"
    assert judge(job(waits, rank(1, IN_ALL_REDUCE))).verdict in ("suspect", "healthy")
    late = replace(waits, silent_for_s=301.0, idle_for_s=301.0)
    verdict = judge(job(late, rank(1, IN_ALL_REDUCE, silent=301.0)))
    assert (verdict.verdict, verdict.culprits) == ("hang", (0,))


# Locks within a process, the interpreter's own, and full memory.

WAITS = rank(0, IN_BARRIER)


def told(case: Case) -> tuple[Any, ...]:
    verdict = judge(case)
    return verdict.verdict, verdict.culprits, verdict.victims, verdict.cause


IN_LIBRARY = ThreadStack(tid=204, frames=(torch("run", "utils/data/x.py"),))
PARKED = ThreadStack(tid=203, frames=(Frame("_worker", f"{STDLIB}/concurrent/thread.py", 81),))


def _with_native_thread(view: RankView, wchan: str, call: str) -> RankView:
    """The rank, with one more thread that runs no Python."""
    target = WaitTarget(call=call, kind="time")
    native = ThreadState(tid=299, state="S", cpu_s=0.0, wchan=wchan, waits_for=(target,))
    return with_kernel(view, threads=lambda _, kernel: (*kernel.threads, native))


def test_a_native_thread_that_sleeps_may_call_the_user_back() -> None:
    """Nothing tells what it will do; one of torch's waits for a condition, within a limit."""
    dead = with_threads(rank(1, IN_LOAD, silent=200.0), LOCKED, PARKED)
    sleeper = _with_native_thread(dead, "hrtimer_nanosleep", "clock_nanosleep")
    gone_on = _with_native_thread(dead, "hrtimer_nanosleep", "restart_syscall")
    of_torch = _with_native_thread(dead, "futex_do_wait", "futex")
    assert [told(job(WAITS, one))[0] for one in (sleeper, gone_on)] == ["suspect", "suspect"]
    assert told(job(WAITS, of_torch))[0] == "hang"


def test_a_thread_that_could_still_release_takes_the_proof_away() -> None:
    open_end = with_threads(rank(1, IN_LOAD, silent=11.0), LOCKED, IN_LIBRARY)
    assert told(job(rank(0, IN_BARRIER, silent=11.0), open_end))[0] == "suspect"
    late = with_threads(rank(1, IN_LOAD), LOCKED, IN_LIBRARY)
    assert told(job(WAITS, late)) == ("hang", (1,), (0,), "thread_deadlock")


@pytest.mark.parametrize(("behind_s", "cause"), [(3, "gil_held"), (1, "rank_stalled")])
def test_a_pulse_that_stands_still_shows_a_kept_interpreter_lock(behind_s: int, cause: str) -> None:
    beat = Beat(pid=101, pulse_ns=NOW_NS - behind_s * SECOND)
    holds = with_lock_owner(rank(1, IN_LOAD, beat=beat))
    assert told(job(WAITS, holds)) == ("hang", (1,), (0,), cause)


@pytest.mark.parametrize(("behind_s", "victims"), [(3, (0,)), (1, ())])
def test_a_helper_that_keeps_the_interpreter_lock_holds_up_a_rank_in_a_collective(
    behind_s: int, victims: tuple[int, ...]
) -> None:
    decodes = ThreadStack(tid=205, owns_gil=True, frames=(user("decode_video", 9),))
    beat = Beat(pid=101, pulse_ns=NOW_NS - behind_s * SECOND)
    holds = with_threads(rank(1, IN_ALL_REDUCE, beat=beat), decodes)
    verdict = judge(job(rank(0, IN_ALL_REDUCE), holds))
    assert verdict.victims == victims
    if victims:
        assert (verdict.culprits, verdict.cause) == ((1,), "gil_held")
        assert "decode_video (demo/train.py:9)" in verdict.summary


@pytest.mark.parametrize(("share", "kind"), [(0.1, "suspect"), (0.8, "healthy")])
def test_who_keeps_the_lock_for_want_of_a_processor_is_not_blamed(share: float, kind: str) -> None:
    """Importing torch on a crowded machine: ready to go on, and not let."""
    beat = Beat(pid=101, pulse_ns=NOW_NS - 3 * SECOND)
    holds = with_lock_owner(rank(1, IN_LOAD, silent=12.0, cpu=0.03, beat=beat, state="R"))
    starved = with_main(holds, queued_s=lambda number: share * number * 1.1)
    assert judge(job(rank(0, IN_ALL_REDUCE), starved)).verdict == kind


@pytest.mark.parametrize(
    ("used", "faults_s", "cause"),
    [(97, 400, "memory_pressure"), (60, 400, "rank_stalled"), (97, 5, "rank_stalled")],
)
def test_full_memory_and_pages_from_disk_are_memory_pressure(
    used: int, faults_s: int, cause: str
) -> None:
    thrashes = with_kernel(
        rank(1, IN_LOAD),
        major_faults=lambda number, _: int(number * 1.1 * faults_s),
        memory=MemoryUse(used << 30, 100 << 30, "control group"),
    )
    assert told(job(WAITS, thrashes)) == ("hang", (1,), (0,), cause)
    if cause == "memory_pressure":
        assert "97 % of the control group's 100.0 GiB" in judge(job(WAITS, thrashes)).summary
