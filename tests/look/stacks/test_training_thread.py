"""Which thread comes first: the one that trains, in processes that really train beside the main."""

from __future__ import annotations

import pytest

from lightning_hangcheck.look.threads import training_first
from lightning_hangcheck.model.evidence import Frame, ProcessStack, ThreadStack

SERVES = (
    Frame("<module>", "/lib/python3.11/site-packages/ray/_private/workers/default_worker.py", 9),
    Frame("Worker.main_loop", "/lib/python3.11/site-packages/ray/_private/worker.py", 1014),
)
JOINS = (Frame("init_process_group", "/lib/python3.11/site-packages/torch/distributed/c.py", 3),)
TRAINS = (
    Frame("Thread._bootstrap", "/lib/python3.11/threading.py", 995),
    Frame("train", "/home/ada/train.py", 12),
)
OF_USER = (Frame("<module>", "/home/ada/train.py", 40),)
LEFT = (Frame("_shutdown", "/lib/python3.11/threading.py", 1600),)


def first_of(main: tuple[Frame, ...], *others: tuple[Frame, ...]) -> str:
    """The name of the thread that comes first: main, a, b, ..."""
    names = ["main", *"abc"[: len(others)]]
    pairs = zip(names, (main, *others), strict=True)
    threads = tuple(ThreadStack(tid=None, name=name, frames=frames) for name, frames in pairs)
    ordered = training_first(ProcessStack(pid=1, source="", threads=threads)).threads
    assert sorted(one.name for one in ordered) == sorted(names)
    return ordered[0].name


@pytest.mark.parametrize(
    ("threads", "first"),
    [
        ((SERVES, (), TRAINS), "b"),
        ((SERVES, TRAINS, TRAINS), "b"),  # newest first where no ids are known: b was there before
        ((SERVES, SERVES), "main"),
        ((OF_USER, TRAINS), "main"),
        (((*SERVES, *JOINS), TRAINS), "main"),
        ((LEFT, TRAINS), "main"),
        (((), TRAINS), "main"),
    ],
)
def test_the_main_thread_is_first_unless_it_only_serves(
    threads: tuple[tuple[Frame, ...], ...], first: str
) -> None:
    assert first_of(*threads) == first
