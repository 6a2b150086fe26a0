"""Which lock a line takes and which it is inside of, read from the source alone."""

from __future__ import annotations

import ast

import pytest

from lightning_hangcheck.look.threads import locks_at
from lightning_hangcheck.model.evidence import Frame

GLOBAL = """
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
DECLARED = """
def handler(lock):
    def report():
        global lock
        with lock:  # takes
            show()
def record():
    from locks import other
    with lock:
        busy()  # holds
"""
CLOSURE = """
def synchronized(function):
    lock = Lock()
    def outer():
        with lock:  # takes
            show()
    def inner():
        with lock:
            function()  # holds
"""
PRIVATE = """
class Stats:
    def report(self):
        with self.__lock:  # takes
            show()
class Times(Stats):
    def record(self):
        with self.__lock:
            self.report()  # holds
"""
ARGUMENT = GLOBAL.replace("number, frame", "number, frame, lock")
IMPORTED = GLOBAL.replace(
    "    with lock:  # takes", "    from it import lock\n    with lock:  # takes"
)
AFTER = GLOBAL.replace("        busy()", "        report()\n    busy()")
AT_ITS_LINE = GLOBAL.replace("with lock:\n        busy()", "with lock: busy()")
LATER = GLOBAL.replace("        busy()", "        def other():\n            busy()")


def at(source: str, word: str) -> tuple[ast.Module, Frame]:
    """The source, and the call that is at its line with this remark, in its innermost function."""
    lines = source.splitlines()
    line = next(number for number, one in enumerate(lines, 1) if one.endswith(f"# {word}"))
    tree = ast.parse(source)
    functions = [
        one
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef) and one.lineno < line <= (one.end_lineno or 0)
    ]
    return tree, Frame(f"Some.{functions[-1].name}", "/demo/train.py", line)


@pytest.mark.parametrize(
    ("source", "text", "of_file", "same"),
    [
        (GLOBAL, "lock", True, True),
        (DECLARED, "lock", True, True),
        (METHODS, "self.lock", False, True),
        (CLOSURE, "lock", False, True),
        (ARGUMENT, "lock", False, False),
        (IMPORTED, "lock", False, False),
        (PRIVATE, "self.__lock of ['Stats']", False, False),
        (AFTER, "lock", True, False),
        (AT_ITS_LINE, "lock", True, False),
        (LATER, "lock", True, False),
    ],
)
def test_a_lock_is_known_by_its_name_and_where_that_lives(
    source: str, text: str, of_file: bool, same: bool
) -> None:
    """Each call of ``synchronized`` has a lock of its own: one name is not one object."""
    taken = locks_at(*at(source, "takes")).taken
    assert taken is not None
    assert (taken.text, taken.of_file) == (text, of_file)
    assert (taken in locks_at(*at(source, "holds")).held) == same


@pytest.mark.parametrize("line", ["with a, b: pass", "with open(path): pass", "work()"])
def test_a_line_that_takes_several_locks_or_one_without_a_name_tells_none(line: str) -> None:
    assert locks_at(ast.parse(line), Frame("<module>", "/demo/train.py", 1)).taken is None


@pytest.mark.parametrize("function", ["<genexpr>", "other", "<lambda>"])
def test_a_line_within_a_block_may_run_later_in_other_code(function: str) -> None:
    """A generator that was written in a block runs where somebody asks for its values."""
    tree, frame = at(GLOBAL, "holds")
    other = Frame(function, frame.file, frame.line)
    assert locks_at(tree, frame).held
    assert not locks_at(tree, other).held


def test_a_property_may_give_another_lock_each_time() -> None:
    source = METHODS + "    @property\n    def lock(self):\n        return self.locks[thread()]\n"
    assert locks_at(*at(source, "takes")).taken is None


@pytest.mark.parametrize(("body", "known"), [("lock.release()", True), ("other.release()", False)])
def test_a_function_that_releases_a_lock_in_between_lets_go_of_it(body: str, known: bool) -> None:
    source = GLOBAL.replace("        busy()", f"        {body}\n        busy()")
    tree, frame = at(source, "holds")
    (lock,) = locks_at(tree, frame).held
    assert (lock in locks_at(tree, frame).released) == known
