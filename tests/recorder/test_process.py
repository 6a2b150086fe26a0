"""Which processes record, and how a rank minds its sidecar, its signals and its coroutines."""

from __future__ import annotations

import asyncio
import faulthandler
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from processes import end, until

from lightning_hangcheck.files import encode_plain
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.recorder.page import PageWriter
from lightning_hangcheck.recorder.page_reader import read_page
from lightning_hangcheck.recorder.process import Pulse, awaiting, handled_signals
from lightning_hangcheck.session.session import SidecarFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Program

    from lightning_hangcheck.session.session import Session

WAITING = [sys.executable, "-c", "input()"]


@pytest.fixture
def sidecar() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(WAITING, stdin=subprocess.PIPE)
    yield process
    end(process)


def name_sidecar(file: Path, pid: int) -> None:
    stat = read_process_stat(pid)
    assert stat
    file.write_bytes(encode_plain(SidecarFacts(pid=pid, started_ticks=stat.started_ticks)))


def test_a_rank_says_that_its_sidecar_is_gone_and_calls_for_another(
    start: Callable[..., Program], session: Session, sidecar: subprocess.Popen[bytes]
) -> None:
    program = start("""
import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current
def start_another():
    print("lost", flush=True)
    raise OSError("cannot start another")
current().on_sidecar_lost = start_another
input()
""")
    name_sidecar(session.sidecar_file, sidecar.pid)
    sidecar.kill()
    assert program.hear() == "lost"
    before = program.page().pulse_ns
    until(lambda: program.page().pulse_ns > before, "the pulse to go on")
    program.finish("\n")
    assert len([line for line in program.troubles if "is gone" in line]) == 1
    assert f"the sidecar (pid {sidecar.pid}) is gone; training goes on" in program.err
    assert "cannot start another" in program.err
    assert len(program.troubles) == 2
    assert program.page().ending == "finished"


@pytest.fixture
def unhandled() -> Iterator[None]:
    numbers = (signal.SIGUSR1, signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM)
    before = {one: signal.signal(one, signal.SIG_DFL) for one in numbers}
    yield
    faulthandler.unregister(signal.SIGUSR1)
    for one, handler in before.items():
        signal.signal(one, handler)


def sets_an_event(*_: object) -> None:
    """Stands for a handler of the user's."""


def from_package(path: str) -> Callable[..., object]:
    names: dict[str, Callable[..., object]] = {}
    code = compile("def handler(*_): pass", f"/venv/lib/python3.11/site-packages/{path}", "exec")
    exec(code, names)  # noqa: S102
    return names["handler"]


def test_a_rank_tells_whose_handlers_could_end_its_wait(unhandled: None) -> None:
    """What faulthandler prints, or a framework does for itself, sets no event of the user's."""
    faulthandler.register(signal.SIGUSR1)
    assert signal.SIGUSR1 not in handled_signals()
    handlers: list[tuple[Any, bool]] = [
        (from_package("torch/utils/data/_utils/signal_handling.py"), False),
        (sets_an_event, True),
        (from_package("submitit/core/job_environment.py"), True),
        (signal.SIG_IGN, False),
    ]
    for handler, of_others in handlers:
        signal.signal(signal.SIGUSR1, handler)
        assert (signal.SIGUSR1 in handled_signals()) == of_others, handler


def test_a_hangup_that_ends_the_program_brings_no_news(unhandled: None) -> None:
    signal.signal(signal.SIGHUP, sets_an_event)
    assert signal.SIGHUP in handled_signals()
    signal.signal(signal.SIGTERM, sets_an_event)
    assert signal.SIGHUP not in handled_signals()


class Server:
    """Serves until a signal says stop, as on preemption."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    def on_signal(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        self.stop.set()


def while_main_is_in(wait: Callable[[], object], release: Callable[[], object]) -> bool:
    """Whether SIGTERM counts while the main thread is in a wait, which is then ended."""
    seen, started, main = list[bool](), list[bool](), threading.main_thread().ident or 0

    def waits() -> bool:
        innermost = sys._current_frames()[main]  # noqa: SLF001 - no other way shows it
        return bool(started) and innermost.f_code.co_name == "wait"

    def look() -> None:
        try:
            until(waits, "the main thread to wait")
            seen.append(signal.SIGTERM in handled_signals())
        finally:
            release()

    thread = threading.Thread(target=look)
    thread.start()
    started.append(True)
    wait()
    thread.join()
    return seen[0]


def test_a_request_to_end_counts_if_its_handler_ends_the_very_wait(unhandled: None) -> None:
    server, batches = Server(), queue.Queue[int]()
    signal.signal(signal.SIGTERM, server.on_signal)
    assert signal.SIGTERM not in handled_signals(), "the main thread waits for nothing"
    assert while_main_is_in(server.stop.wait, server.stop.set)
    assert not while_main_is_in(batches.get, lambda: batches.put(1))
    signal.signal(signal.SIGTERM, sets_an_event)
    server.stop.clear()
    assert not while_main_is_in(server.stop.wait, server.stop.set), "it only takes note"


async def next_rollout(rollouts: asyncio.Queue[int]) -> int:
    return await rollouts.get()


def test_where_a_coroutine_stands_is_told_while_its_loop_waits() -> None:
    """The main thread itself shows only the loop."""
    seen: list[str] = []

    async def main() -> None:
        loop, rollouts = asyncio.get_running_loop(), asyncio.Queue[int]()

        def look() -> None:
            until(lambda: any(one.function == "next_rollout" for one in awaiting()), "a rollout")
            seen.extend(one.function.rpartition(".")[2] for one in awaiting())
            loop.call_soon_threadsafe(rollouts.put_nowait, 1)

        looking = threading.Thread(target=look)
        looking.start()
        await asyncio.wait_for(next_rollout(rollouts), 600)
        looking.join()

    assert awaiting() == []
    asyncio.run(main())
    assert seen == ["main", "next_rollout"]


def test_an_exception_that_is_handled_for_long_is_told(tmp_path: Path) -> None:
    page = PageWriter.unseen()
    sidecar_file = tmp_path / "sidecar.json"
    pulse = Pulse(page, sidecar_file, lambda _: None, float, lambda: None).start(1)
    try:
        int("no such split")
    except ValueError:
        until(lambda: read_page(page.buffer).handling, "the exception to be told")
        words = read_page(page.buffer).handling
    until(lambda: not read_page(page.buffer).handling, "it to be over")
    pulse.stop(10.0)
    assert words.startswith("ValueError: invalid literal")
    assert "test_process.py" in words


WORKER = """
import multiprocessing, os, sys
import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current

def work(how):
    hc.beat()
    hc.checkpoint("worker checkpoint")
    with hc.section("worker section"):
        pass
    current().page.enter_phase("backward", step=99)
    current().note("worker")
    if how == "raise":
        raise ValueError("of a worker")
    if how == "learn":
        current().learn_identity(1, 2, 1)
        hc.checkpoint("now a rank")

if __name__ == "__main__":
    hc.checkpoint("Script started")
    with hc.section("training"):
        process = multiprocessing.get_context(METHOD).Process(target=work, args=(HOW,))
        process.start()
        process.join()
    print(process.pid)
"""


def worker(method: str, how: str) -> str:
    return WORKER.replace("METHOD", repr(method)).replace("HOW", repr(how))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", ["return", "raise"])
def test_a_multiprocessing_worker_leaves_no_trace(
    run: Callable[..., Program], method: str, how: str
) -> None:
    program = run(worker(method, how))
    assert [line.partition(" (")[0] for line in program.said] == [
        "CHECKPOINT 1: Script started",
        "About to call training...",
        "training returned",
    ]
    assert program.pages() == {program.process.pid}
    page = program.page()
    assert (page.beats, page.step, page.ending) == (0, None, "finished")
    assert {entry["pid"] for entry in program.journal()} == {program.process.pid}
    assert program.troubles == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_learns_its_rank_is_a_rank(run: Callable[..., Program], method: str) -> None:
    """As Lightning's ddp_fork and ddp_spawn do it."""
    program = run(worker(method, "learn"))
    pid = int(program.out)
    assert program.pages() == {program.process.pid, pid}
    page = program.page(pid)
    assert (page.rank, page.world_size, page.ending) == (1, 2, "finished")
    assert page.checkpoint
    assert page.checkpoint.name == "now a rank"
    assert [entry["kind"] for entry in program.journal("rank-1")] == [
        "start",
        "checkpoint",
        "finished",
    ]
    assert program.page().rank == 0


START_ANOTHER = """
import os, subprocess, sys
import lightning_hangcheck as hc
hc.checkpoint("first")
code = "import lightning_hangcheck as hc; hc.checkpoint('other'); hc.beat()"
shell = ["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, code]
subprocess.run(shell, check=True, env=os.environ | CHANGES)
"""


def test_a_program_that_a_rank_starts_is_no_second_rank(run: Callable[..., Program]) -> None:
    """A compile worker, a helper script: it inherits RANK and the session."""
    program = run(START_ANOTHER.replace("CHANGES", "{}"))
    assert program.said == ["CHECKPOINT 1: first"]
    assert program.pages() == {program.process.pid}


def test_a_rank_that_a_plain_program_starts_is_a_rank(run: Callable[..., Program]) -> None:
    """As Lightning's own launcher starts ranks 1 and up from `python train.py`."""
    changes = "{'LOCAL_RANK': '1', 'NODE_RANK': '0', 'WORLD_SIZE': '2'}"
    code = START_ANOTHER.replace("CHANGES", changes)
    program = run(code, RANK=None, WORLD_SIZE=None, LOCAL_RANK=None)
    assert program.said == ["CHECKPOINT 1: first", "CHECKPOINT 1: other"]
    assert "[R?/?][LR?]" in program.err
    assert "[R1/2][LR1]" in program.err
    ranks = {program.page(pid).rank for pid in program.pages()}
    assert ranks == {None, 1}
    assert program.journal(f"pid-{program.process.pid}")
    assert program.journal("rank-1")
