"""Which lock a line takes and which it is inside of, read from the source alone."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from lightning_hangcheck.probes.source_code.held_locks import lock_taken, locks_held

GLOBAL = """
lock = Lock()
def handler(number, frame):
    with lock:  # takes
        report()
def record():
    with lock:
        busy()  # holds
"""
METHODS = """
class Stats:
    def report(self):
        with self.lock:  # takes
            show()
    def record(self):
        with self.lock, timed():
            self.report()  # holds
"""
CLOSURE = """
def main():
    lock = Lock()
    def handler(number, frame):
        lock.acquire()  # takes
    with lock:
        busy()  # holds
"""
OTHERS = """
lock = Lock()
def handler(number, frame, lock):
    with lock:  # takes
        report()
def record():
    with lock:
        busy()  # holds
"""
AFTER = """
lock = Lock()
def handler(number, frame):
    with lock:  # takes
        report()
def record():
    with lock:
        report()
    busy()  # holds
"""


def both(source: str) -> tuple[str, bool, bool]:
    """The lock taken, whether it is the call's own, and whether the other line is inside of it."""
    text = dedent(source)
    takes, holds = (
        next(n for n, one in enumerate(text.splitlines(), 1) if one.endswith(f"# {word}"))
        for word in ("takes", "holds")
    )
    tree = ast.parse(text)
    taken = lock_taken(tree, takes)
    assert taken is not None
    same = (
        one.text == taken.text and one.own == taken.own and (one.own or one.scope is taken.scope)
        for one in locks_held(tree, holds)
    )
    return taken.text, taken.own, any(same)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (GLOBAL, ("lock", False, True)),
        (METHODS, ("self.lock", True, True)),
        (CLOSURE, ("lock", False, False)),
        (OTHERS, ("lock", True, False)),
        (AFTER, ("lock", False, False)),
    ],
)
def test_a_lock_is_known_by_its_name_and_where_that_lives(
    source: str, told: tuple[str, bool, bool]
) -> None:
    assert both(source) == told


@pytest.mark.parametrize("line", ["with a, b: pass", "with open(path): pass", "work()"])
def test_a_line_that_takes_several_locks_or_one_without_a_name_tells_none(line: str) -> None:
    assert lock_taken(ast.parse(line), 1) is None
