"""Waits that one thing alone would end: sentence and first remedy say which."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import (
    FUTEX,
    IN_ALL_REDUCE,
    IN_BARRIER,
    IN_GETITEM,
    IN_LOAD,
    IN_LOADER,
    LOCKED,
    MAIN,
    SITE,
    STDLIB,
    gone,
    job,
    look,
    rank,
    user,
    waiting_for,
    with_threads,
    worker,
)

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, OpenSection
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
SCORES = ThreadStack(tid=303, name="pool_0", frames=(TASK, user("score", 21), *RESULT))
LOGS = ThreadStack(tid=304, name="ship_0", takes_lock=True, frames=(TASK, user("send", 19)))


def first_advice(verdict: Verdict) -> str:
    return verdict.remedies[0].in_words


def test_a_stopped_worker_is_let_go_on_before_anything_else() -> None:
    """The cause is the worker, and what helps is the same as for a rank that is stopped."""
    waiter = rank(1, IN_LOADER, children=(worker(0, IN_GETITEM, state="T"),))
    verdict = judge(job(WAITS, waiter))
    assert verdict.cause == "dataloader_worker"
    assert first_advice(verdict) == "let it go on: kill -CONT 500"


def test_so_is_a_stopped_child() -> None:
    child = look((MAIN,), pid=600, role="child", state="T")
    waiter = rank(1, IN_LOAD, children=(child,), **waiting_for("pipe", "read", "pipe:[9]", 600))
    assert first_advice(judge(job(WAITS, waiter))) == "let it go on: kill -CONT 600"


@pytest.mark.parametrize("child", [worker(0, IN_GETITEM), worker(0, IN_GETITEM, cpu=1.0)])
def test_nobody_is_told_to_wake_a_worker_that_is_not_stopped(child: object) -> None:
    verdict = judge(job(WAITS, rank(1, IN_LOADER, children=(child,))))
    assert not any("kill -CONT" in one.in_words for one in verdict.remedies)


def test_that_the_child_is_stopped_is_said() -> None:
    child = look((MAIN,), pid=600, role="child", state="T")
    waiter = rank(1, IN_LOAD, children=(child,), **waiting_for("process", "wait4", "600", 600))
    verdict = judge(job(WAITS, waiter))
    assert "end of its child pid 600 (python), which is stopped by a signal" in verdict.summary
    assert first_advice(verdict) == "let it go on: kill -CONT 600"


def test_a_worker_that_waits_for_a_process_of_its_own_says_for_which() -> None:
    reads = worker(0, IN_GETITEM, **waiting_for("pipe", "read", "pipe:[9]", 600))
    verdict = judge(job(WAITS, rank(1, IN_LOADER, children=(reads,))))
    assert "in read of pipe:[9], at its other end pid 600 (python)" in verdict.summary
    assert "communicate(timeout=60)" in first_advice(verdict)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("openat", "which no process has opened at its other end"),
        ("write", "full"),
        ("read", "empty"),
    ],
)
def test_who_writes_to_a_fifo_has_found_somebody_at_its_other_end(call: str, said: str) -> None:
    waiter = rank(1, IN_LOAD, **waiting_for("fifo", call, "/home/ada/pipe"))
    summary = judge(job(WAITS, waiter)).summary
    assert f"in {call} of the FIFO /home/ada/pipe, " in summary
    assert said in summary


def test_ranks_that_wait_for_each_other_are_all_to_blame_whatever_they_wait_in() -> None:
    """Rank 1 asks rank 0, which stands in a collective by then, and answers nobody."""
    asks = rank(1, IN_LOAD, silent=6.0, **waiting_for("socket", "recvfrom", "127.0.0.1:80", 100))
    verdict = judge(job(rank(0, IN_BARRIER, silent=6.0), asks))
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1, 0), ())
    assert (
        "waiting at 127.0.0.1:80 for an answer of rank 0 while rank 0 waits for it in barrier"
        in verdict.summary
    )
    assert "answers nobody" in first_advice(verdict)


def waits_at_exit(thread: ThreadStack) -> RankView:
    return with_threads(rank(1, SHUTDOWN), thread, takes_lock=False)


def test_an_exit_waits_for_the_users_thread_rather_than_for_a_librarys_daemon() -> None:
    """Which thread is a daemon no stack tells; libraries mark theirs."""
    package = "/venv/lib/python3.11/site-packages/wandb/finalizer.py"
    daemon = ThreadStack(tid=300, name="finalizer", frames=(Frame("publish", package, 95),))
    case = job(gone(0, 0), with_threads(rank(1, SHUTDOWN), daemon, UPLOADER, takes_lock=False))
    assert "for its thread uploader, which is in upload (demo/train.py:17)" in judge(case).summary


def test_native_code_that_gave_up_is_not_sent_after_memory() -> None:
    for number, batch in ((signal.SIGABRT, False), (signal.SIGKILL, True)):
        verdict = judge(job(WAITS, gone(1, -number)))
        texts = [one.in_words for one in verdict.remedies]
        assert any("batch_size" in text for text in texts) == batch
        assert any("native code" in text for text in texts) != batch


def test_an_exit_names_the_thread_for_which_it_waits() -> None:
    verdict = judge(job(gone(0, 0), waits_at_exit(UPLOADER)))
    assert verdict.culprits == (1,)
    assert (
        "rank 1 is stuck at the exit of the interpreter: waiting 31 s for its thread uploader, "
        "which is in upload (demo/train.py:17), in Queue.get" in verdict.summary
    )
    texts = [one.in_words for one in verdict.remedies]
    assert "queue.put(None)" in texts[0]
    assert "daemon=True" in texts[1]
    assert not any("init_process_group" in text for text in texts)


def writing_to_pipe(view: RankView, tid: int) -> RankView:
    """The rank, that thread of it writing to a pipe of which it has both ends."""
    own = view.processes[0]
    pipe = waiting_for("pipe", "write", "pipe:[9]", own.pid)
    samples = []
    for one in own.samples:
        assert one.kernel is not None
        writes = ThreadState(tid=tid, state="S", cpu_s=0.0, syscall=1, **pipe)
        threads = (one.kernel.threads[0], writes)
        kernel = msgspec.structs.replace(one.kernel, threads=threads)
        samples.append(msgspec.structs.replace(one, kernel=kernel))
    own = msgspec.structs.replace(own, samples=tuple(samples))
    return msgspec.structs.replace(view, processes=(own,))


def test_an_exit_that_waits_for_a_queue_says_so_and_where() -> None:
    verdict = judge(job(gone(0, 0), writing_to_pipe(waits_at_exit(FEEDER), 301)))
    assert verdict.culprits == (1,)
    assert "QueueFeederThread, which writes to a multiprocessing.Queue" in verdict.summary
    assert "in Connection._send (multiprocessing/connection.py:384)" in verdict.summary
    assert "queue.cancel_join_thread()" in first_advice(verdict)


def test_tasks_that_wait_for_their_own_pool_need_another_one() -> None:
    main = rank(1, (MAIN, user("evaluate", 28), *RESULT))
    verdict = judge(job(WAITS, with_threads(main, SCORES, takes_lock=False)))
    assert (verdict.culprits, verdict.cause) == ((1,), "rank_stalled")
    assert "give the inner ones an executor of their own" in first_advice(verdict)


def test_a_lock_and_a_future_that_wait_for_each_other_are_a_deadlock_of_threads() -> None:
    main = rank(1, (MAIN, user("emit", 24), *RESULT), silent=6.0)
    verdict = judge(job(rank(0, IN_ALL_REDUCE), with_threads(main, LOGS, takes_lock=False)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (1,), "thread_deadlock")
    assert (
        "in emit (demo/train.py:24) for its thread ship_0, which waits in send (demo/train.py:19)"
        in verdict.summary
    )
    assert "with a lock in hand that this thread takes" in first_advice(verdict)


def test_a_future_beside_a_lock_of_some_other_thread_is_none() -> None:
    """The thread that should bring the result computes: whoever else stands in a lock waits on."""
    works = ThreadStack(tid=305, name="pool_1", frames=(TASK, user("crunch", 5)))
    main = rank(1, (MAIN, user("emit", 24), *RESULT))
    view = with_threads(main, works, LOCKED, takes_lock=False)
    assert judge(job(WAITS, view)).cause != "thread_deadlock"


def test_a_full_pipe_is_to_be_read_by_whoever_has_its_other_end() -> None:
    """The child is another program: it has no copy of a lock, whatever it waits for itself."""
    child = look((MAIN,), pid=600, role="child", waits_for=FUTEX)
    waiter = rank(1, IN_LOAD, children=(child,), **waiting_for("pipe", "write", "pipe:[9]", 600))
    verdict = judge(job(WAITS, waiter))
    assert "writing to a full pipe that pid 600 (python) should read" in verdict.summary
    assert "let it read on" in first_advice(verdict)


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


@pytest.mark.parametrize(("section", "own"), [("Trainer.fit", True), ("WandbLogger", False)])
def test_who_connects_a_logger_of_ones_own_is_not_sent_to_another_trackers_options(
    section: str, own: bool
) -> None:
    property_of = Frame(
        "rank_zero_experiment.<locals>.experiment",
        f"{SITE}/lightning/fabric/loggers/logger.py",
        118,
    )
    beat = Beat(pid=101, beats=9, sections=(OpenSection(name=section, since_ns=1),))
    frames = (MAIN, property_of, user("TrackLogger.experiment", 25))
    waits = waiting_for("socket", "recvfrom", "10.0.0.7:80")
    verdict = judge(job(WAITS, rank(1, frames, beat=beat, **waits)))
    assert verdict.cause == "logger_init"
    assert "in recvfrom of 10.0.0.7:80" in verdict.summary
    texts = [one.in_words for one in verdict.remedies]
    assert any("wandb" in text.lower() for text in texts) != own
    assert ("train.py:25: give the connection" in texts[0]) == own


def test_a_download_from_the_hub_is_given_the_limits_that_the_hub_has() -> None:
    """The user's line calls from_pretrained, which takes no time limit."""
    hub = Frame("hf_hub_download", f"{SITE}/huggingface_hub/file_download.py", 1002)
    silent = waiting_for("socket", "recvfrom", "10.0.0.1:443")

    verdict = judge(job(WAITS, rank(1, (*IN_LOAD, hub), **silent)))

    advice = " ".join(remedy.in_words for remedy in verdict.remedies)
    assert verdict.cause == "network_wait"
    assert "HF_HUB_DOWNLOAD_TIMEOUT" in advice
    assert "local_files_only=True" in advice
    assert "hf download MODEL" in first_advice(verdict)
    assert "requests.get" not in advice


def test_another_connection_is_given_a_time_limit_and_no_advice_about_the_hub() -> None:
    silent = waiting_for("socket", "recvfrom", "10.0.0.1:443")

    verdict = judge(job(WAITS, rank(1, IN_LOAD, **silent)))

    assert "requests.get(..., timeout=30)" in first_advice(verdict)
    assert not any("hf download" in remedy.in_words for remedy in verdict.remedies)


@pytest.mark.parametrize(
    ("words", "helps"),
    [("FileExistsError: [Errno 17] File exists: 'runs'", True), ("ValueError: no 'runs'", False)],
)
def test_ranks_that_make_one_folder_are_told_who_makes_it(words: str, helps: bool) -> None:
    verdict = judge(job(WAITS, gone(1, exit_code=1, words=words)))

    assert verdict.cause == "process_dead"
    assert ("lightning_hangcheck.make_directory" in first_advice(verdict)) == helps
    assert any("mend what rank 1 raised" in remedy.in_words for remedy in verdict.remedies)


def test_a_remedy_holds_no_sign_that_a_terminal_obeys() -> None:
    """Names of functions and files are the job's own, and a remedy quotes them."""
    hostile = user("f\x1b[2J\nRECOVERED\x9b", 3, "/home/ada/demo/a\x1b]0;b.py")
    verdict = judge(job(rank(0, IN_ALL_REDUCE), rank(1, (hostile,))))
    assert verdict.remedies
    assert all(one.in_words.isprintable() for one in verdict.remedies)
    assert any("f\\x1b[2J RECOVERED" in one.text for one in verdict.remedies)
