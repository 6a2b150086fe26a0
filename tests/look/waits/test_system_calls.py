"""What really blocked processes wait for, and who could end that."""

from __future__ import annotations

import ctypes
import http.server
import os
import signal
import socket
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from look.waits.blocked import PROGRAM, state_of, target_of, with_holders
from processes import PATIENCE_S, until

from lightning_hangcheck.judge.threads import FUTEXES
from lightning_hangcheck.look.kernel import CALLS, TIMESPEC, calls_of, kernel_state, wakes_at
from lightning_hangcheck.look.open_files import (
    Holders,
    file_locks,
    own_addresses,
    reach_of,
    tcp_connections,
)
from lightning_hangcheck.look.py_spy import python_stacks
from lightning_hangcheck.model.evidence import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from processes import StartProgram


SECOND = 1_000_000_000


def test_opening_a_fifo_without_a_writer_is_told_from_a_file(
    program: StartProgram, tmp_path: Path
) -> None:
    fifo = tmp_path / "nobody writes"
    os.mkfifo(fifo)
    running = program(PROGRAM, "open_fifo", str(fifo))
    target = target_of(running.pid, kind="fifo")
    assert (target.call, target.name) == ("openat", str(fifo))


def test_the_other_end_of_a_pipe_is_found_among_the_jobs_processes(program: StartProgram) -> None:
    running = program(PROGRAM, "read_pipe")
    child = int(running.first_words)
    target = target_of(running.pid, child, kind="pipe")
    assert target.call == "read"
    assert [one.pid for one in target.holders] == [child]


@pytest.mark.parametrize(
    ("how", "call"),
    [("wait_for_child", "wait4"), ("wait_for_any_child", ""), ("poll_child", "epoll_wait")],
)
def test_waiting_for_children_names_each(program: StartProgram, how: str, call: str) -> None:
    """asyncio polls a descriptor of its child, from Python 3.12 on."""
    running = program(PROGRAM, how)
    target = target_of(running.pid, kind="process")
    targets = state_of(running.pid).threads[0].waits_for
    assert call in (target.call, "")
    assert {one.name for one in targets} == set(running.first_words.split())
    assert [str(one.pid) for one in target.holders] == [target.name]


@pytest.mark.parametrize("who", ["child", "parent"])
def test_a_unix_connection_is_held_by_those_that_have_its_other_end(
    program: StartProgram, who: str
) -> None:
    """`multiprocessing.Pipe` makes one; once the child is gone, the process waits for itself."""
    running = program(PROGRAM, "read_both_ways", who)
    child = int(running.first_words)
    target = target_of(running.pid, child, kind="pipe")
    assert [one.pid for one in target.holders] == [child if who == "child" else running.pid]


def test_a_daemon_keeps_a_pipe_though_nobody_looks_at_it(program: StartProgram) -> None:
    """The reader has both ends: that tells nobody that the daemon has one, too."""
    running = program(PROGRAM, "read_from_daemon")
    daemon = int(running.first_words)
    try:
        target = target_of(running.pid, kind="pipe")
        assert [one.pid for one in target.holders] == [daemon]
        state = kernel_state(running.pid, 0, PATIENCE_S)[0]
        assert state is not None
        late = Holders([running.pid], deadline=0.0)
        assert [one.holders for one in late.complete(state).threads[0].waits_for] == [()]
        assert len(late.gaps) == 1, "who was not looked for may have it"
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_who_may_signal_an_event_is_found_among_the_jobs_processes(program: StartProgram) -> None:
    running = program(PROGRAM, "read_event")
    child = int(running.first_words)
    alone = target_of(running.pid, kind="other")
    assert (alone.call, alone.name[:9], alone.holders) == ("read", "eventfd:[", ())
    shared = target_of(running.pid, child, kind="pipe")
    assert shared.name == alone.name
    assert {one.pid for one in shared.holders} == {running.pid, child}


@pytest.mark.parametrize("waiter", ["parent", "child"])
def test_a_waiter_for_a_semaphore_names_the_processes_that_share_it(
    program: StartProgram, waiter: str
) -> None:
    """Also the one that started it."""
    running = program(PROGRAM, "take_semaphore", waiter)
    pids = [running.pid, int(running.first_words)]
    waits, other = pids if waiter == "parent" else pids[::-1]
    target = target_of(waits, *([other] if waiter == "parent" else []), kind="shared")
    assert (target.call, target.name[:8]) == ("futex", "memory:[")
    assert [one.pid for one in target.holders] == [other]


def test_a_join_of_a_thread_is_no_wait_for_other_processes(program: StartProgram) -> None:
    running = program(PROGRAM, "join_natively")

    def joins() -> bool:
        main = state_of(running.pid).threads[0]
        return main.syscall in FUTEXES and not main.arguments[1] & 128  # FUTEX_PRIVATE_FLAG

    until(joins, "the main thread to join the other")
    assert state_of(running.pid).threads[0].waits_for == ()


@pytest.mark.parametrize("limit", ["", "1000"])
def test_a_receiver_names_the_remote_end_with_a_time_limit_and_without(
    program: StartProgram, limit: str
) -> None:
    running = program(PROGRAM, "receive", limit)
    target = target_of(running.pid, kind="socket")
    assert target.call == ("poll" if limit else "recvfrom")
    assert target.name == running.first_words


def test_a_poll_is_still_read_after_a_dump_interrupted_it(program: StartProgram) -> None:
    """The kernel goes on with it as another call."""
    running = program(PROGRAM, "receive", "1000")
    target_of(running.pid, kind="socket")
    python_stacks(running.pid, 0, PATIENCE_S)
    assert target_of(running.pid, kind="socket").name == running.first_words


@pytest.mark.parametrize("family", ["4", "6"])
def test_one_that_accepts_names_its_own_end(program: StartProgram, family: str) -> None:
    running = program(PROGRAM, "accept", family)
    target = target_of(running.pid, kind="socket")
    address = {"4": "127.0.0.1", "6": "[::1]"}[family]
    assert target.name == f"{address}:{running.first_words}"
    assert target.call.startswith("accept")


def test_the_owner_of_the_remote_end_is_found_and_bytes_of_a_download_are_counted(
    program: StartProgram,
) -> None:
    with _trickle() as (port, let_go):
        running = program(PROGRAM, "download", str(port))
        target = target_of(running.pid, os.getpid(), kind="socket")
        assert target.name == f"127.0.0.1:{port}"
        assert [one.pid for one in target.holders] == [os.getpid()]
        before = state_of(running.pid).network_bytes
        assert before is not None
        let_go.set()
        until(
            lambda: (state_of(running.pid).network_bytes or 0) > before + 50_000,
            "the download's bytes",
        )


@contextmanager
def _trickle() -> Iterator[tuple[int, threading.Event]]:
    """A server that begins its answer, and goes on for ever once it is let go."""
    let_go, over = threading.Event(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            let_go.wait(60)
            while not over.wait(0.01):
                try:
                    self.wfile.write(b"x" * 1000)
                except OSError:
                    return

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, let_go
    finally:
        over.set()
        let_go.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.parametrize("count", ["1", "2"])
def test_threads_in_locks_show_it_by_line_and_futex(program: StartProgram, count: str) -> None:
    running = program(PROGRAM, "locked_threads", count)

    def locked() -> int:
        stack, _ = python_stacks(running.pid, 0, PATIENCE_S)
        futexes = {
            thread.tid
            for thread in state_of(running.pid).threads
            if any(target.kind == "futex" for target in thread.waits_for)
        }
        threads = stack.threads if stack is not None else ()
        return sum(thread.takes_lock and thread.tid in futexes for thread in threads)

    until(lambda: locked() == int(count), "the threads to be in their locks")


def test_a_process_that_waits_for_a_signal_has_no_time_limit(program: StartProgram) -> None:
    running = program(PROGRAM, "wait_for_signal")
    assert running.first_words == "waiting"
    target_of(running.pid, kind="other")
    assert [one.kind for one in state_of(running.pid).threads[0].waits_for] == ["other"]


def test_the_lock_table_is_read_as_proc_5_has_it(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text(
        "3: -> OFDLCK  ADVISORY  WRITE -1 fe:10:2146453 0 EOF\n3: what is this\n"
    )
    (waiting,) = file_locks(str(tmp_path / "locks"))
    assert (waiting.number, waiting.waiting, waiting.exclusive) == ("3:", True, True)
    assert (waiting.pid, waiting.device, waiting.inode) == (-1, (0xFE, 0x10), 2146453)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_calls_in_which_threads_block_are_known(machine: str) -> None:
    names = {call.name for call in calls_of(machine).values()}
    assert {"read", "write", "futex", "flock", "fcntl", "recvfrom", "connect", "wait4"} <= names
    assert {"rt_sigsuspend", "rt_sigtimedwait"} <= names
    assert {"ppoll", "openat", "fsync", "clock_nanosleep", "restart_syscall"} <= names
    assert calls_of("some other machine") == {}


@pytest.mark.parametrize(
    ("seconds", "nanoseconds", "wakes_ns"),
    [(7, 5, 7_000_000_005), (1 << 62, 0, None), (-(1 << 62), 0, None), (9_300_000_000, 0, None)],
)
def test_memory_that_holds_no_moment_any_more_is_not_taken_for_one(
    seconds: int, nanoseconds: int, wakes_ns: int | None
) -> None:
    """A number that no 64 bits hold could neither be saved nor told to another node."""
    memory = ctypes.create_string_buffer(TIMESPEC.pack(seconds, nanoseconds))
    number = next(n for n, call in CALLS.items() if call.name == "clock_nanosleep")
    arguments = (1, 1, ctypes.addressof(memory), 0, 0, 0)
    assert wakes_at(os.getpid(), number, arguments) == wakes_ns


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older ones wait until a wall clock's time")
def test_a_thread_that_waits_for_an_event_shows_until_when() -> None:
    """One that ticks by ``Event.wait`` shows another moment each time, as a sleeping one does."""
    event = threading.Event()
    thread = threading.Thread(target=event.wait, args=(600.0,))
    before_ns = time.monotonic_ns()
    thread.start()
    try:
        wakes_ns = until(lambda: _wakes_ns(thread.native_id), "the thread to wait")
    finally:
        event.set()
        thread.join()
    assert 0 <= wakes_ns - before_ns - 600 * SECOND < 60 * SECOND


def _wakes_ns(tid: int | None) -> int | None:
    state, _ = kernel_state(os.getpid(), 0, 5.0)
    assert state is not None
    return next(one.wakes_ns for one in state.threads if one.tid == tid)


@pytest.mark.parametrize(
    ("family", "server", "client"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.2"),
        (socket.AF_INET6, "::1", "::1"),
    ],
)
def test_both_ends_of_a_connection_and_its_bytes_are_told(
    family: socket.AddressFamily, server: str, client: str
) -> None:
    with closing(socket.socket(family)) as listens, closing(socket.socket(family)) as asks:
        listens.bind((server, 0))
        listens.listen()
        asks.bind((client, 0))
        asks.connect(listens.getsockname())
        accepted, _ = listens.accept()
        with closing(accepted):
            asks.sendall(b"x" * 1_000)
            assert len(accepted.recv(1_000, socket.MSG_WAITALL)) == 1_000
            found = tcp_connections()
            state, _ = kernel_state(os.getpid(), 0, PATIENCE_S)
            assert found is not None
            assert state is not None
            there = found[os.fstat(accepted.fileno()).st_ino]
            shown = f"[{server}]" if family is socket.AF_INET6 else server
            assert there.local == f"{shown}:{listens.getsockname()[1]}"
            assert there.remote.rpartition(":")[2] == str(asks.getsockname()[1])
            assert there.carried_bytes >= 1_000
            (state,) = with_holders([state])
            told = Connection(there.local, there.remote) in state.connections
            assert told == (server != client), "only what leads to another address"


def test_a_machine_that_answers_is_told_by_what_came_from_it() -> None:
    with closing(socket.socket()) as listens, closing(socket.socket()) as asks:
        listens.bind(("127.0.0.3", 0))
        listens.listen()
        asks.connect(listens.getsockname())
        asks.sendall(b"x")
        (reach,) = reach_of(["127.0.0.3", "127.0.0.4"], [os.getpid()])
        assert (reach.address, reach.unanswered) == ("127.0.0.3", 0)
        assert reach.heard_s < 5.0


def test_other_machines_know_this_one_by_no_address_of_its_own_loopback() -> None:
    assert not any(one.startswith("127.") or one == "[::1]" for one in own_addresses())
