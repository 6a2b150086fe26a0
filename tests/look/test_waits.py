"""What really blocked processes wait for, and who could end that."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from long_tests import real_when_asked_for
from processes import PATIENCE_S, until

from lightning_hangcheck.judge.threads import FUTEXES
from lightning_hangcheck.look import proc
from lightning_hangcheck.look.kernel import CALLS, TIMESPEC, calls_of, kernel_state, wakes_at
from lightning_hangcheck.look.open_files import (
    Holders,
    file_locks,
    own_addresses,
    reach_of,
    sockets_seen_by,
    tcp_connections,
)
from lightning_hangcheck.look.sample import Target, look_at
from lightning_hangcheck.look.stacks import python_stacks
from lightning_hangcheck.look.threads import UNKNOWN, maker_of
from lightning_hangcheck.model.evidence import Connection

if TYPE_CHECKING:
    from processes import RunningProgram, StartProgram

    from lightning_hangcheck.model.evidence import ProcessState, WaitTarget

PROGRAM = "waiting_for.py"


def state_of(*pids: int) -> ProcessState:
    """The first one's state, with what looking at all of them adds."""
    state, _ = kernel_state(pids[0], 0, PATIENCE_S)
    return Holders(pids).complete(state)


def target_of(*pids: int, kind: str) -> WaitTarget:
    """What the first one's main thread waits for, once it is of that kind."""

    def look() -> WaitTarget | None:
        targets = state_of(*pids).threads[0].waits_for
        return next((target for target in targets if target.kind == kind), None)

    return until(look, f"pid {pids[0]} to wait for a {kind}")


def test_opening_a_fifo_without_a_writer_is_told_from_a_file(
    program: StartProgram, tmp_path: Path
) -> None:
    fifo = tmp_path / "nobody writes"
    os.mkfifo(fifo)
    running = program(PROGRAM, "open_fifo", str(fifo))
    target = target_of(running.pid, kind="fifo")
    assert (target.call, target.name) == ("openat", str(fifo))


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


def test_a_pseudo_terminal_is_a_pipe_to_the_process_that_made_it(program: StartProgram) -> None:
    """One that nobody of the job made may be a person's."""
    running = program(PROGRAM, "read_pseudo_terminal")
    child = int(running.first_words)
    alone = target_of(child, kind="terminal")
    assert alone.name.startswith("/dev/pts/")
    answers = target_of(child, running.pid, kind="pipe")
    assert [one.pid for one in answers.holders] == [running.pid]


@pytest.mark.parametrize("often", ["once", "again"])
def test_a_timer_of_the_kernel_is_a_time(program: StartProgram, often: str) -> None:
    running = program(PROGRAM, "read_timer", often)
    until(lambda: state_of(running.pid).threads[0].waits_for, "it to read its timer")
    assert [target.kind for target in state_of(running.pid).threads[0].waits_for] == ["time"]


def test_a_launcher_that_waits_for_its_processes_shares_nothing_with_them(
    program: StartProgram,
) -> None:
    """It gives no semaphore back, that it has started one of them with."""
    running = program(PROGRAM, "take_semaphore", "joined child")
    child = int(running.first_words)
    target = target_of(child, kind="shared")
    assert target.holders == ()


def test_a_launchers_timer_may_give_a_semaphore_back(program: StartProgram) -> None:
    running = program(PROGRAM, "take_semaphore", "timed child")
    target = target_of(int(running.first_words), kind="shared")
    assert [holder.pid for holder in target.holders] == [running.pid]


@pytest.mark.parametrize(
    ("launcher", "joins"),
    [
        ("joins", True),
        ("polls", True),
        ("listens", False),
        ("has a timer", False),
        ("is told", False),
    ],
)
def test_a_launcher_that_waits_for_its_processes_reads_none_of_their_pipes(
    program: StartProgram, launcher: str, joins: bool
) -> None:
    """Unless another thread of it may, or a process beside the job tells it to."""
    running = program(PROGRAM, "fill_pipe", launcher)
    child = int(running.first_words)

    def holders() -> list[tuple[int, tuple[int, ...]]]:
        every = target_of(child, kind="pipe").holders
        found = [(one.pid, one.awaits) for one in every if one.pid == running.pid]
        return found if not joins or all(awaits for _, awaits in found) else []

    assert until(holders, "the launcher to wait") == [(running.pid, (child,) if joins else ())]


def test_a_launcher_reads_the_pipes_of_its_processes_one_after_the_other(
    program: StartProgram,
) -> None:
    running = program(PROGRAM, "read_one_pipe_of_two")
    full, idle = map(int, running.first_words.split())

    def readers() -> list[int]:
        holders = target_of(full, idle, kind="pipe").holders
        return [holder.pid for holder in holders if holder.awaits == (idle,)]

    assert until(readers, "the launcher to read the other") == [running.pid]


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


def test_a_launchers_other_processes_share_a_semaphore_too(program: StartProgram) -> None:
    running = program(PROGRAM, "take_semaphore", "child beside another")
    child, another = map(int, running.first_words.split())
    assert [one.pid for one in target_of(child, kind="shared").holders] == [another]


def test_a_semaphore_that_any_program_may_open_is_known_by_its_path(program: StartProgram) -> None:
    path = Path(f"/dev/shm/sem.hangcheck-test-{os.getpid()}")  # noqa: S108 - glibc's folder
    running = program(PROGRAM, "take_named_semaphore", path.name.removeprefix("sem."))
    try:
        assert target_of(running.pid, kind="shared").name == str(path)
    finally:
        path.unlink()


def test_a_fifo_that_its_reader_keeps_open_is_fed_by_path(
    program: StartProgram, tmp_path: Path
) -> None:
    """Children have a copy of it, and do not write."""
    running = program(PROGRAM, "read_fifo_kept_open", str(tmp_path / "orders"))
    assert target_of(running.pid, int(running.first_words), kind="fifo").holders == ()


def test_a_join_of_a_thread_is_no_wait_for_other_processes(program: StartProgram) -> None:
    running = program(PROGRAM, "join_natively")

    def joins() -> bool:
        main = state_of(running.pid).threads[0]
        return main.syscall in FUTEXES and not main.arguments[1] & 128  # FUTEX_PRIVATE_FLAG

    until(joins, "the main thread to join the other")
    assert state_of(running.pid).threads[0].waits_for == ()


def test_a_receiver_names_the_remote_end(program: StartProgram) -> None:
    running = program(PROGRAM, "receive")
    target = target_of(running.pid, kind="socket")
    assert (target.call, target.name) == ("recvfrom", running.first_words)


def test_a_poll_is_still_read_after_a_dump_interrupted_it(program: StartProgram) -> None:
    """The kernel goes on with it as another call."""
    running = program(PROGRAM, "receive", "1000")
    for _ in range(2):
        target = target_of(running.pid, kind="socket")
        assert (target.call, target.name) == ("poll", running.first_words)
        python_stacks(running.pid, 0, PATIENCE_S)


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        running = program(PROGRAM, "download", str(port))
        accepted, _ = server.accept()
    with accepted:
        target = target_of(running.pid, os.getpid(), kind="socket")
        assert target.name == f"127.0.0.1:{port}"
        assert [one.pid for one in target.holders] == [os.getpid()]
        before = state_of(running.pid).network_bytes
        accepted.sendall(bytes(100_000))
        until(lambda: state_of(running.pid).network_bytes > before + 50_000, "the bytes")


def test_threads_in_locks_show_it_by_line_and_futex(program: StartProgram) -> None:
    running = program(PROGRAM, "locked_threads")

    def locked() -> int:
        ((_, sample),) = look_at([Target(pid=running.pid)], PATIENCE_S).samples
        futexes = {
            thread.tid
            for thread in sample.kernel.threads
            if any(target.kind == "futex" for target in thread.waits_for)
        }
        threads = sample.stack.threads if sample.stack is not None else ()
        return sum(thread.takes_lock and thread.tid in futexes for thread in threads)

    until(lambda: locked() == 2, "the threads to be in their locks")


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


def test_the_calls_in_which_threads_block_are_known() -> None:
    """Numbers of include/uapi: asm/unistd_64.h and asm-generic/unistd.h."""
    intel, arm = calls_of("x86_64"), calls_of("aarch64")
    assert (intel[0], intel[202].name, arm[63], arm[98].name) == (
        arm[63],
        "futex",
        intel[0],
        "futex",
    )
    assert {call.name for call in arm.values()} < {call.name for call in intel.values()}
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
    assert 600e9 <= wakes_ns - before_ns < 660e9


def _wakes_ns(tid: int | None) -> int | None:
    state, _ = kernel_state(os.getpid(), 0, 5.0)
    return next(one.wakes_ns for one in state.threads if one.tid == tid)


@pytest.mark.parametrize(
    ("family", "server", "client"),
    [(socket.AF_INET, "127.0.0.1", "127.0.0.2"), (socket.AF_INET6, "::1", "::1")],
)
def test_both_ends_of_a_connection_and_its_bytes_are_told(
    family: socket.AddressFamily, server: str, client: str
) -> None:
    with socket.create_server((server, 0), family=family) as listens:
        asks = socket.create_connection(listens.getsockname()[:2], source_address=(client, 0))
        accepted, _ = listens.accept()
    with asks, accepted:
        asks.sendall(b"x" * 1_000)
        assert len(accepted.recv(1_000, socket.MSG_WAITALL)) == 1_000
        there = tcp_connections()[os.fstat(accepted.fileno()).st_ino]
        shown = f"[{server}]" if family is socket.AF_INET6 else server
        assert there.local == f"{shown}:{accepted.getsockname()[1]}"
        assert there.remote.rpartition(":")[2] == str(asks.getsockname()[1])
        assert there.carried_bytes >= 1_000
        told = Connection(there.local, there.remote) in state_of(os.getpid()).connections
        assert told == (server != client), "only what leads to another address"


def test_a_udp_socket_has_its_own_end_and_the_other_only_if_it_is_connected() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hears,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asks,
    ):
        hears.bind(("127.0.0.1", 0))
        asks.connect(hears.getsockname())
        seen = sockets_seen_by(os.getpid())
        there, here = (seen[os.fstat(one.fileno()).st_ino] for one in (hears, asks))
    assert (there.remote, there.datagrams) == ("", True)
    assert here.remote == there.local == "127.0.0.1:" + there.local.rpartition(":")[2]


def test_a_machine_that_answers_is_told_by_what_came_from_it() -> None:
    listens = socket.create_server(("127.0.0.3", 0))
    with listens, socket.create_connection(listens.getsockname()) as asks:
        asks.sendall(b"x")
        (reach,) = reach_of(["127.0.0.3", "127.0.0.4"], [os.getpid()])
    assert (reach.address, reach.unanswered) == ("127.0.0.3", 0)
    assert reach.heard_s < 5.0


def test_other_machines_know_this_one_by_no_address_of_its_own_loopback() -> None:
    assert not any(one.startswith("127.") or one == "[::1]" for one in own_addresses())


def polled_by(waiter: RunningProgram) -> WaitTarget:
    """The lock for which any thread of a process is seen to poll."""

    def look() -> WaitTarget | None:
        ((_, sample),) = look_at([Target(pid=waiter.pid)], PATIENCE_S).samples
        targets = (one for state in sample.kernel.threads for one in state.waits_for)
        return next((one for one in targets if one.kind == "lock"), None)

    return until(look, "the poller to be seen")


@pytest.mark.parametrize(("kind", "call"), [("flock", "flock"), ("lockf", "fcntl")])
def test_a_waiter_for_a_file_lock_names_file_and_holder(
    program: StartProgram, tmp_path: Path, kind: str, call: str
) -> None:
    path = str(tmp_path / "a lock")
    holder = program(PROGRAM, "lock", kind, path)
    assert holder.announcement() == "holding"
    waiter = program(PROGRAM, "lock", kind, path)
    target = target_of(waiter.pid, kind="lock")
    assert (target.call, target.name) == (call, path)
    assert [(one.pid, one.program[:6]) for one in target.holders] == [(holder.pid, "python")]


@pytest.mark.parametrize("closed", [True, False])
def test_a_lock_that_a_child_inherited_is_released_by_who_has_it_open(
    program: StartProgram, tmp_path: Path, closed: bool
) -> None:
    """The kernel's table goes on to name a parent that has closed the file."""
    path = tmp_path / "a.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[file.fileno()])
        try:
            if closed:
                file.close()
            waiter = program(PROGRAM, "lock", "flock", path)
            target = target_of(waiter.pid, child.pid, os.getpid(), kind="lock")
            holders = [child.pid] if closed else [os.getpid(), child.pid]
            assert [holder.pid for holder in target.holders] == holders
        finally:
            child.communicate()


@pytest.mark.parametrize(("command", "listens"), [(["cat"], True), (["sleep", "1000"], False)])
def test_a_socket_may_wake_the_child_for_which_another_job_keeps_a_lock(
    program: StartProgram, tmp_path: Path, command: list[str], listens: bool
) -> None:
    path = str(tmp_path / "a lock")
    holder = program(PROGRAM, "lock_for_child", path, *command)
    (child,) = proc.descendants(holder.pid)
    until(lambda: state_of(child.pid).threads[0].waits_for, "the child to wait")
    waiter = program(PROGRAM, "lock", "flock", path)
    holders = target_of(waiter.pid, kind="lock").holders
    assert [(one.pid, one.listens) for one in holders] == [(holder.pid, listens)]


def test_a_poller_for_a_lock_file_names_file_and_holder(
    program: StartProgram, tmp_path: Path
) -> None:
    folder = tmp_path / ("models--somebody--" + 200 * "x")
    folder.mkdir()
    path = str(folder / "hub.lock")
    holder = program(PROGRAM, "lock", "flock", path)
    assert holder.announcement() == "holding"
    waiter = program(PROGRAM, "filelock", "hard", path)

    target = polled_by(waiter)
    assert (target.call, target.kind, target.name) == ("filelock", "lock", path)
    assert ([one.pid for one in target.holders], target.limited) == ([holder.pid], False)


def test_a_lock_file_may_be_named_from_the_folder_where_its_process_is(
    program: StartProgram, tmp_path: Path
) -> None:
    path = os.path.relpath(tmp_path / "hub.lock")
    holder = program(PROGRAM, "lock", "flock", path)
    assert holder.announcement() == "holding"
    target = polled_by(program(PROGRAM, "filelock", "hard", path))
    assert target.name == str(Path.cwd() / path)
    assert [one.pid for one in target.holders] == [holder.pid]


def test_a_poller_for_a_database_names_file_and_holder(
    program: StartProgram, tmp_path: Path
) -> None:
    path = str(tmp_path / "index.sqlite")
    holder = program(PROGRAM, "database", path)
    assert holder.announcement() == "holding"
    waiter = program(PROGRAM, "database", path)
    target = target_of(waiter.pid, holder.pid, kind="lock")
    assert (target.call, target.name) == ("sleep", path)
    assert [one.pid for one in target.holders] == [holder.pid]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="time.sleep is no sleep before")
@pytest.mark.parametrize("how", ["in Python", "natively", "in naps"])
def test_one_that_sleeps_beside_a_locked_file_waits_for_nobody(
    program: StartProgram, tmp_path: Path, how: str
) -> None:
    path = str(tmp_path / "a lock")
    holder = program(PROGRAM, "lock", "flock", path)
    assert holder.announcement() == "holding"
    sleeper = program(PROGRAM, "sleep_beside", path, how)

    def asleep() -> bool:
        return "nanosleep" in state_of(sleeper.pid, holder.pid).threads[0].wchan

    until(asleep, "it to sleep")
    (target,) = state_of(sleeper.pid, holder.pid).threads[0].waits_for
    assert (target.kind, target.call) == ("time", "clock_nanosleep")


HERE = socket.gethostname()


def ended_pid() -> int:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def made_by(path: Path, text: str) -> tuple[list[int], bool]:
    """Who made a file in which this is written, and whether that one is gone."""
    path.write_text(text)
    maker = maker_of(str(path), os.getpid())
    return [one.pid for one in maker.holders], maker.gone


@pytest.mark.parametrize("text", ["{}", "{}\n" + HERE, "pid: {}", '{{"pid": {}}}'])
def test_a_file_is_held_by_whom_it_names_on_this_host_or_abandoned(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "cache.lock"
    assert made_by(path, text.format(ended_pid())) == ([], True)
    assert made_by(path, text.format(os.getpid())) == ([os.getpid()], False)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert maker_of(str(path), os.getpid()).gone, "the number was given to this process later"


def test_a_lock_file_may_be_kept_open_by_another_path(tmp_path: Path) -> None:
    """As where a folder is mounted twice."""
    path, other = tmp_path / "lock", tmp_path / "seen"
    path.touch()
    other.hardlink_to(path)
    assert maker_of(str(other), os.getpid(), alone=True).gone
    with path.open():
        assert [one.pid for one in maker_of(str(other), os.getpid()).holders] == [os.getpid()]


@pytest.mark.parametrize("text", ["{}\n" + HERE + "7", "busy"])
def test_a_file_that_names_nobody_of_this_host_is_of_an_unknown_maker(
    tmp_path: Path, text: str
) -> None:
    assert made_by(tmp_path / "cache.lock", text.format(os.getpid())) == ([], False)


@real_when_asked_for
@pytest.mark.parametrize(("library", "gone"), [(("filelock", "soft"), False), (("baton",), True)])
def test_an_empty_lock_file_that_nobody_has_open_is_abandoned_if_no_script_can_have_made_it(
    program: StartProgram, tmp_path: Path, library: tuple[str, ...], *, gone: bool
) -> None:
    path = tmp_path / "lock"
    named = str(tmp_path) if library == ("baton",) else str(path)
    with path.open("w"):
        waiter = program(PROGRAM, *library, named)
        target = polled_by(waiter)
        assert ([one.pid for one in target.holders], target.abandoned) == ([os.getpid()], False)
    target = polled_by(waiter)
    assert (target.name, target.holders, target.abandoned) == (str(path), (), gone)


INSIDE = """
import os, socket, subprocess, sys
from pathlib import Path
from lightning_hangcheck.look.threads import maker_of
ended, path = subprocess.Popen(["true"]), Path(sys.argv[1])
ended.wait()
path.write_text(str(ended.pid))
print(maker_of(str(path), os.getpid()).gone, flush=True)
path.write_text(f"{os.getpid()}\\n{socket.gethostname()}\\n")
print("written", flush=True)
sys.stdin.read()
"""


@real_when_asked_for
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_neither_a_container_nor_its_host_knows_who_of_the_other_made_a_file(
    tmp_path: Path,
) -> None:
    """It has this host's name, as with ``docker run --network host``, and numbers of its own."""
    path = tmp_path / "a.lock"
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", INSIDE, path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as inside:
        found = subprocess.run(["stat", "-f", "-c", "%T", path.parent], stdout=subprocess.PIPE)
        own = found.stdout.strip() in (b"overlayfs", b"tmpfs")  # of this container alone
        assert inside.stdout.readline() == f"{own}\n"
        assert inside.stdout.readline() == "written\n"
        assert maker_of(str(path), os.getpid()) == UNKNOWN
        inside.communicate(timeout=120)


@real_when_asked_for
def test_a_lock_with_a_time_limit_is_left_to_that(program: StartProgram, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    target = polled_by(program(PROGRAM, "filelock", "soft", str(path), "1000"))
    assert (target.name, target.abandoned, target.limited) == (str(path), False, True)


ASKS_ITS_CHILD = """
import os, signal, socket, sys
path = sys.argv[1]
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSTOP)
server.close()
asks = socket.socket(socket.AF_UNIX)
asks.connect(path)
os.write(int(os.environ["HANGCHECK_TEST_ANNOUNCE"]), f"{child}\\n".encode())
asks.recv(1)
"""


def test_a_child_that_has_not_answered_at_its_path_yet_is_waited_for(
    program: StartProgram, tmp_path: Path
) -> None:
    """As a worker whose rank asks it for the descriptor of a tensor: its stack is read."""
    (tmp_path / "asks.py").write_text(ASKS_ITS_CHILD)
    running = program(tmp_path / "asks.py", str(tmp_path / "ear"))
    child = int(running.first_words.split()[-1])
    targets = [Target(pid=running.pid, role="rank"), Target(pid=child, role="worker")]

    def read() -> bool:
        samples = look_at(targets, PATIENCE_S).samples
        return all(sample.stack is not None for _, sample in samples)

    try:
        until(read, "both stacks")
    finally:
        os.kill(child, signal.SIGKILL)
