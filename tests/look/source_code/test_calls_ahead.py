"""Whether a thread calls collectives from the line on which it stands, read from its source."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from lightning_hangcheck.look.source import CallsAhead

IMPORTS = """
import os, queue, subprocess, time
import torch
import torch.distributed as dist
from torch.distributed import all_gather_object as gather_all
from project.sync import publish
"""


def ahead(source: str) -> bool | None:
    """Whether the thread calls collectives that stands where the source says HERE."""
    calls, line = read(source)
    return calls.collectives(line)


def wakes(source: str) -> bool | None:
    """Whether it may end another one's wait."""
    calls, line = read(source)
    return calls.waking(line)


def read(source: str) -> tuple[CallsAhead, int]:
    """The source with some imports, and the line of HERE."""
    text = IMPORTS + dedent(source)
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "HERE" in one)
    return CallsAhead(ast.parse(text)), line


@pytest.mark.parametrize(
    "source",
    [
        "def save():\n    time.sleep(9)  # HERE\n    dist.barrier()",
        "def save():\n    subprocess.run(['cp'])  # HERE\n    gather_all(found, None)",
        "def save():\n    jobs.get()  # HERE\n    dist.send(tensor, 0)",
        "def save():\n    time.sleep(9)  # HERE\n    fabric.barrier('saved')",
        "def save():\n    go.wait()  # HERE\n    meet()\ndef meet():\n    dist.all_reduce(tensor)",
        "def save():\n    go.wait()  # HERE\n    pool.map(meet)\ndef meet():\n    dist.barrier()",
        """
        class Saver(Thread):
            def run(self):
                time.sleep(9)  # HERE
                self.publish()
            def publish(self):
                dist.barrier()
        """,
        """
        def serve():
            while True:
                dist.broadcast(tensor, 0)
                time.sleep(9)  # HERE
        """,
    ],
)
def test_what_follows_is_read_with_the_files_own_functions(source: str) -> None:
    assert ahead(source) is True


@pytest.mark.parametrize(
    "source",
    [
        "def tick():\n    while True:\n        print('alive')\n        time.sleep(9)  # HERE",
        "def tick():\n    while not stop.wait(9):  # HERE\n        log.info('%s', os.getpid())",
        "def drain():\n    for line in child.stdout:  # HERE\n        lines.append(line.strip())",
        "def serve():\n    while True:\n        conn = sock.accept()  # HERE\n        conn.close()",
        "def drain():\n    dist.barrier()\n    jobs.get()  # HERE\n    torch.ones(3)",
        """
        def tick():
            while True:
                note()
                time.sleep(9)  # HERE
        def note():
            note()
        """,
        "def other():\n    dist.barrier()\ndef tick():\n    time.sleep(9)  # HERE",
    ],
)
def test_a_heartbeat_calls_none(source: str) -> None:
    assert ahead(source) is False


@pytest.mark.parametrize(
    "source",
    [
        "def work(call):\n    jobs.get()  # HERE\n    call()",
        "def work():\n    jobs.get()()  # HERE",
        "def work():\n    time.sleep(9)  # HERE\n    publish(results)",
        "def work():\n    time.sleep(9)  # HERE\n    self.trainer.finish()",
    ],
)
def test_whatever_a_call_may_do_is_not_known(source: str) -> None:
    assert ahead(source) is None


def test_a_program_is_not_followed_to_its_end() -> None:
    """A hundred functions, each of which calls the next one."""
    steps = "".join(f"def step_{n}():\n    step_{n + 1}()\n" for n in range(100))
    last = "def step_100():\n    dist.barrier()\n"
    assert ahead(f"def work():\n    time.sleep(9)  # HERE\n    step_0()\n{steps}{last}") is None


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def tick():\n    while not stop.wait(9):  # HERE\n        print(os.getpid())", False),
        ("def tick():\n    for line in child.stdout:  # HERE\n        lines.append(line)", False),
        ("def tick():\n    time.sleep(9)  # HERE\n    lock.release()", True),
        ("def tick():\n    time.sleep(9)  # HERE\n    self.queue.put(1)", True),
        ("def tick():\n    time.sleep(9)  # HERE\n    self.barrier.wait()", True),
        ("all = Barrier(2)\ndef tick():\n    time.sleep(9)  # HERE\n    all.wait()", True),
        ("def tick():\n    time.sleep(9)  # HERE\n    jobs.get()", True),
        ("def tick():\n    with lock:\n        time.sleep(9)  # HERE", True),
        ("def tick():\n    time.sleep(9)  # HERE\n    end()\ndef end():\n    done.set()", True),
        ("def tick(call):\n    time.sleep(9)  # HERE\n    call()", None),
        ("def tick():\n    time.sleep(9)  # HERE\n    publish(results)", None),
    ],
)
def test_a_thread_ends_anothers_wait_by_giving_back_a_lock_or_bringing_news(
    source: str, told: bool | None
) -> None:
    assert wakes(source) is told
