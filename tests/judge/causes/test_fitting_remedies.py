"""Waits that one thing alone would end: sentence and first remedy say which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import (
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_LOAD,
    LOCKED,
    MAIN,
    STDLIB,
    changed_rank,
    gone,
    job,
    look,
    rank,
    user,
    waiting_for,
    with_threads,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.evidence import Frame, ThreadStack, ThreadState
from lightning_hangcheck.model.flight import FlightRecord

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.verdict import Verdict

WAITS = rank(0, IN_BARRIER)
SHUTDOWN = (Frame("_shutdown", f"{STDLIB}/threading.py", 1590),)
CONDITION = Frame("Condition.wait", f"{STDLIB}/threading.py", 327)
RESULT = (Frame("Future.result", f"{STDLIB}/concurrent/futures/_base.py", 451), CONDITION)
TASK = Frame("_worker", f"{STDLIB}/concurrent/futures/thread.py", 83)
FEEDER = ThreadStack(
    tid=301,
    name="QueueFeederThread",
    frames=(
        Frame("Queue._feed", f"{STDLIB}/multiprocessing/queues.py", 270),
        Frame("Connection._send", f"{STDLIB}/multiprocessing/connection.py", 384),
    ),
)
UPLOADER = ThreadStack(
    tid=302,
    name="uploader",
    frames=(user("upload", 17), Frame("Queue.get", f"{STDLIB}/queue.py", 171), CONDITION),
)


def first_advice(verdict: Verdict) -> str:
    return verdict.remedies[0].in_words


def test_that_the_child_is_stopped_is_said() -> None:
    child = look((MAIN,), pid=600, role="child", state="T")
    waiter = rank(1, IN_LOAD, children=(child,), **waiting_for("process", "wait4", "600", 600))
    verdict = judge(job(WAITS, waiter))
    assert "end of its child pid 600 (python), which is stopped by a signal" in verdict.summary
    assert first_advice(verdict) == "let it go on: kill -CONT 600"


def test_a_pipe_is_full_whoever_should_read_it() -> None:
    """Those of a crowded machine are not all looked through: a launcher that reads another rank."""
    verdict = judge(job(WAITS, rank(1, IN_LOAD, **waiting_for("pipe", "write", "pipe:[9]"))))
    assert "writing to a full pipe, and who should read it was not seen" in verdict.summary
    assert "a pipe holds 64 KiB" in first_advice(verdict)


def waits_at_exit(thread: ThreadStack) -> RankView:
    return with_threads(rank(1, SHUTDOWN), thread, takes_lock=False)


def test_an_exit_waits_for_the_users_thread_rather_than_for_a_librarys_daemon() -> None:
    """Which thread is a daemon no stack tells; libraries mark theirs."""
    package = "/venv/lib/python3.11/site-packages/wandb/finalizer.py"
    daemon = ThreadStack(tid=300, name="finalizer", frames=(Frame("publish", package, 95),))
    case = job(gone(0, 0), with_threads(rank(1, SHUTDOWN), daemon, UPLOADER, takes_lock=False))
    assert "for its thread uploader, which is in upload (demo/train.py:17)" in judge(case).summary


def writing_to_pipe(view: RankView, tid: int) -> RankView:
    """The rank, that thread of it writing to a pipe of which it has both ends."""
    pipe = waiting_for("pipe", "write", "pipe:[9]", view.processes[0].pid)
    writes = ThreadState(tid=tid, state="S", cpu_s=0.0, syscall=1, **pipe)
    return changed_rank(view, lambda _, states, stacks: ((states[0], writes), stacks))


def test_an_exit_that_waits_for_a_queue_says_so_and_where() -> None:
    verdict = judge(job(gone(0, 0), writing_to_pipe(waits_at_exit(FEEDER), 301)))
    assert verdict.culprits == (1,)
    assert "QueueFeederThread, which writes to a multiprocessing.Queue" in verdict.summary
    assert "in Connection._send (multiprocessing/connection.py:384)" in verdict.summary
    assert "queue.cancel_join_thread()" in first_advice(verdict)


def test_a_future_beside_a_lock_of_some_other_thread_is_none() -> None:
    """The thread that should bring the result computes: whoever else stands in a lock waits on."""
    works = ThreadStack(tid=305, name="pool_1", frames=(TASK, user("crunch", 5)))
    main = rank(1, (MAIN, user("emit", 24), *RESULT))
    view = with_threads(main, works, LOCKED, takes_lock=False)
    assert judge(job(WAITS, view)).cause != "thread_deadlock"


@pytest.mark.parametrize(
    ("frames", "counted", "said"),
    [
        (IN_LOAD, {"TCPStore__get": 1}, "for a key of the store at 127.0.0.1:23705, which no rank"),
        (IN_LOAD, {}, "for 127.0.0.1:23705, which does not answer"),
        (
            (*IN_LOAD, Frame("SocketIO.readinto", f"{STDLIB}/socket.py", 705)),
            {"TCPStore__get": 1},
            "for 127.0.0.1:23705, which does not answer",
        ),
    ],
)
def test_a_store_of_ones_own_answers_once_somebody_sets_the_key(
    frames: tuple[Frame, ...], counted: dict[str, int], said: str
) -> None:
    waiter = rank(1, frames, **waiting_for("socket", "poll", "127.0.0.1:23705"))
    flight = FlightRecord(taken_ns=1, waits=counted)
    verdict = judge(job(WAITS, msgspec.structs.replace(waiter, flight=flight)))
    assert verdict.cause == "network_wait"
    assert said in verdict.summary
    assert ("look for the line that should set the key" in first_advice(verdict)) == ("key" in said)


@pytest.mark.parametrize(
    ("words", "helps"),
    [("FileExistsError: [Errno 17] File exists: 'runs'", True), ("ValueError: no 'runs'", False)],
)
def test_ranks_that_make_one_folder_are_told_who_makes_it(words: str, helps: bool) -> None:
    verdict = judge(job(WAITS, gone(1, exit_code=1, words=words)))

    assert verdict.cause == "process_dead"
    assert ("lightning_hangcheck.make_directory" in first_advice(verdict)) == helps
    assert any("fix what rank 1 raised" in remedy.in_words for remedy in verdict.remedies)


def test_a_remedy_holds_no_sign_that_a_terminal_obeys() -> None:
    """Names of functions and files are the job's own, and a remedy quotes them."""
    hostile = user("f\x1b[2J\nRECOVERED\x9b", 3, "/home/ada/demo/a\x1b]0;b.py")
    verdict = judge(job(rank(0, IN_ALL_REDUCE), rank(1, (hostile,))))
    assert verdict.remedies
    assert all(one.in_words.isprintable() for one in verdict.remedies)
    assert any("f\\x1b[2J RECOVERED" in one.text for one in verdict.remedies)
