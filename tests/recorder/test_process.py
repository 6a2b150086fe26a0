"""A rank notices that its sidecar was killed, says so once, and its pulse goes on."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from processes import end, until

from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.recorder.page import PageWriter, read_page
from lightning_hangcheck.recorder.process import Pulse
from lightning_hangcheck.recorder.wait_facts import awaiting, handled_signals
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


def watching(
    file: Path, on_lost: Callable[[int], None], patience_s: Callable[[], float] = float
) -> Pulse:
    """One that looks when it is told to; without patience."""
    return Pulse(PageWriter.unseen(), file, on_lost, patience_s, lambda: None)


def name_sidecar(file: Path, pid: int) -> None:
    stat = read_process_stat(pid)
    assert stat
    file.write_bytes(encode(SidecarFacts(pid=pid, started_ticks=stat.started_ticks)))


def test_a_killed_sidecar_is_missed_once(tmp_path: Path, sidecar: subprocess.Popen[bytes]) -> None:
    """Already as a zombie: whoever started it may be too busy to reap it."""
    lost: list[int] = []
    file = tmp_path / "sidecar.json"
    watch = watching(file, lost.append)
    watch.look()
    name_sidecar(file, sidecar.pid)
    watch.look()
    assert lost == []
    sidecar.kill()
    until(lambda: watch.look() or lost, "the sidecar to be missed")
    watch.look()
    assert lost == [sidecar.pid]
    name_sidecar(file, os.getpid())
    watch.look()
    assert lost == [sidecar.pid]


def test_a_sidecar_that_is_replaced_in_time_is_not_missed(
    tmp_path: Path, sidecar: subprocess.Popen[bytes]
) -> None:
    """Whoever replaced it has said so; that training goes on unwatched would be wrong by then."""
    lost: list[int] = []
    patience_s = [60.0]
    file = tmp_path / "sidecar.json"
    watch = watching(file, lost.append, lambda: patience_s[0])
    name_sidecar(file, sidecar.pid)
    sidecar.kill()
    sidecar.wait(120)
    watch.look()
    killed = file.read_bytes()
    name_sidecar(file, os.getpid())
    patience_s[0] = 0.0
    watch.look()
    assert lost == []
    file.write_bytes(killed)
    watch.look()
    assert lost == [sidecar.pid], "nobody replaces it, and patience ends"


def test_a_sidecar_that_left_on_purpose_is_not_missed_and_another_with_its_id_is_none(
    tmp_path: Path, sidecar: subprocess.Popen[bytes]
) -> None:
    lost: list[int] = []
    file = tmp_path / "sidecar.json"
    watch = watching(file, lost.append)
    name_sidecar(file, sidecar.pid)
    watch.look()
    file.unlink()
    end(sidecar)
    watch.look()
    file.write_text("{")
    watch.look()
    assert lost == []
    file.write_bytes(encode(SidecarFacts(pid=os.getpid(), started_ticks=1)))
    watch.look()
    assert lost == [os.getpid()]


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
    numbers = (signal.SIGUSR1, signal.SIGCHLD)
    before = {one: signal.signal(one, signal.SIG_DFL) for one in numbers}
    yield
    faulthandler.unregister(signal.SIGUSR1)
    for one, handler in before.items():
        signal.signal(one, handler)


def sets_an_event(*_: object) -> None:
    """Stands for a handler of the user's."""


def from_package(path: str, source: str) -> Callable[..., object]:
    names: dict[str, Callable[..., object]] = {}
    exec(compile(source, f"/venv/lib/python3.11/site-packages/{path}", "exec"), names)  # noqa: S102
    return names["handler"]


OF_LOADER = "torch/utils/data/_utils/signal_handling.py", "def handler(*_): pass"
BEFORE = "def make(before):\n def handler(*_): before\n return handler\nhandler = make"
COMPOSED = """class handler:
 def __init__(self, handlers): self.handlers = handlers
 def __call__(self, *_): pass
"""


def test_a_rank_tells_whose_handlers_could_end_its_wait(unhandled: None) -> None:
    """What faulthandler prints, or a framework does for itself, sets no event of the user's."""
    lightnings = from_package("lightning/pytorch/trainer/connectors/signal_connector.py", COMPOSED)
    loaders, chained = from_package(*OF_LOADER), from_package(OF_LOADER[0], BEFORE)
    faulthandler.register(signal.SIGUSR1)
    assert signal.SIGUSR1 not in handled_signals()
    handlers: list[tuple[Any, bool]] = [
        (loaders, False),
        (chained(sets_an_event), True),
        (lightnings([loaders]), False),
        (lightnings([loaders, sets_an_event]), True),
        (functools.partial(sets_an_event), True),
        (from_package("submitit/core/job_environment.py", "def handler(*_): pass"), True),
        (signal.SIG_IGN, False),
    ]
    for handler, of_others in handlers:
        signal.signal(signal.SIGUSR1, handler)
        assert (signal.SIGUSR1 in handled_signals()) == of_others, handler


def test_an_event_loop_that_a_signal_wakes_is_told(unhandled: None) -> None:
    async def wait() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, sets_an_event)
        assert signal.SIGCHLD in handled_signals()

    asyncio.run(wait())


async def next_rollout(rollouts: asyncio.Queue[int]) -> int:
    return await rollouts.get()


async def gathered(rollouts: asyncio.Queue[int]) -> None:
    await asyncio.gather(asyncio.sleep(0), next_rollout(rollouts))


async def limited(rollouts: asyncio.Queue[int]) -> None:
    await asyncio.wait_for(next_rollout(rollouts), 600)


async def waited_for(rollouts: asyncio.Queue[int]) -> None:
    await asyncio.wait({asyncio.ensure_future(next_rollout(rollouts))})


@pytest.mark.parametrize("through", [next_rollout, gathered, limited, waited_for])
def test_where_a_coroutine_stands_is_told_while_its_loop_waits(
    through: Callable[[asyncio.Queue[int]], Any],
) -> None:
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
        await through(rollouts)
        looking.join()

    assert awaiting() == []
    asyncio.run(main())
    assert seen == list(dict.fromkeys(("main", through.__name__, "next_rollout")))


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
