"""Locks by their names in the source: which one a line takes, and which its calls are inside of.

A thread that takes a lock which an outer call of its own holds waits for itself: a signal's handler
that ran in the middle of ``with lock:``, or a method that calls another one which locks, too. One
that takes a lock of whose ``with`` block another thread is inside waits for that thread.
"""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.probes.source_code.syntax import FUNCTIONS, around, called_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.evidence import Frame

UNNAMED = "<lambda>"
OF_THE_FILE = "<module>"


class NamedLock(NamedTuple):
    """A lock as a line of source names it.

    Attributes:
        text: As written, for example ``self.lock``; of a private attribute its class, too.
        root: The variable with which that begins.
        of_file: That variable is the file's own, so there is one of it. Each call has its own ones,
            and so have those functions that use the variables of a function around them.
    """

    text: str
    root: str
    of_file: bool


def lock_taken(tree: ast.Module, frame: Frame) -> NamedLock | None:
    """Return the lock that a line takes; None where it takes none, or several, or by no name."""
    call = _Call(tree, frame)
    found: list[ast.expr] = []
    for node in call.own():
        if isinstance(node, ast.With) and node.lineno == frame.line:
            found += [item.context_expr for item in node.items]
        elif isinstance(node, ast.Call) and node.lineno == frame.line:
            found += _owner_called(node, "acquire")
    return call.named(found[0]) if len(found) == 1 else None


def locks_held(tree: ast.Module, frame: Frame) -> Iterator[NamedLock]:
    """Find what a call has taken by its line: in a ``with`` block, or up to a ``finally``."""
    call = _Call(tree, frame)
    for parent, node in call.blocks():
        for expression in (*_of_with(node, frame.line), *_of_finally(parent, node, frame.line)):
            lock = call.named(expression)
            if lock is not None:
                yield lock


def lets_go(tree: ast.Module, frame: Frame, lock: NamedLock) -> bool:
    """Whether a call's function releases such a lock elsewhere than in a ``finally``."""
    call = _Call(tree, frame)
    at_end = {
        inner
        for node in call.own()
        if isinstance(node, ast.Try)
        for statement in node.finalbody
        for inner in ast.walk(statement)
    }
    calls = (node for node in call.own() if isinstance(node, ast.Call) and node not in at_end)
    return any(call.named(one) == lock for node in calls for one in _owner_called(node, "release"))


class _Call:
    """A call as the source shows it. Nothing is known of one whose line is in other code, too."""

    def __init__(self, tree: ast.Module, frame: Frame) -> None:
        self._tree = tree
        self._around = [tree, *around(tree, frame.line)]
        functions = (one for one in reversed(self._around) if isinstance(one, FUNCTIONS))
        function = next(functions, None)
        name = getattr(function, "name", UNNAMED) if function is not None else OF_THE_FILE
        known = name == frame.function.rpartition(".")[2]
        self._function = (function or tree) if known else None

    def own(self) -> Iterator[ast.AST]:
        """What it runs: its function's code without that of functions within."""
        if self._function is not None:
            yield from _own(self._function)

    def blocks(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """What its line is in, from its function inwards, each after what is around it."""
        if self._function is not None:
            within = self._around[self._around.index(self._function) :]
            yield from pairwise(within)

    def named(self, expression: ast.expr) -> NamedLock | None:
        """Read a lock's name; None of what may give another one each time, as a property."""
        inner, attributes = expression, set()
        while isinstance(inner, ast.Attribute):
            attributes.add(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name) or attributes & _function_names(self._tree):
            return None
        text = ast.unparse(expression)
        if any(one.startswith("__") and not one.endswith("__") for one in attributes):
            classes = [one.name for one in self._around if isinstance(one, ast.ClassDef)]
            text += f" of {classes[-1:]}"
        return NamedLock(text, inner.id, self._of_file(inner.id))

    def _of_file(self, name: str) -> bool:
        for function in (one for one in reversed(self._around) if isinstance(one, FUNCTIONS)):
            own = [*_own(function)]
            if any(isinstance(one, ast.Global) and name in one.names for one in own):
                return True
            if any(name in _bound(one) for one in own):
                return False
        return True


def _of_with(node: ast.AST, line: int) -> list[ast.expr]:
    """Return what a ``with`` has around a line; nothing where it may be taking that still."""
    if not isinstance(node, ast.With):
        return []
    found = [item.context_expr for item in node.items]
    header = max(one.end_lineno or one.lineno for one in found)
    return found if header < node.body[0].lineno <= line else []


def _of_finally(parent: ast.AST, node: ast.AST, line: int) -> list[ast.expr]:
    """Return what is acquired just before a ``try`` around a line, and released at its end."""
    if not isinstance(node, ast.Try) or not node.finalbody or line >= node.finalbody[0].lineno:
        return []
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    block = next((one for one in blocks if isinstance(one, list) and node in one), [node])
    before = block[: block.index(node)][-1:]
    released = {ast.unparse(one) for one in _plainly_called(node.finalbody, "release")}
    return [one for one in _plainly_called(before, "acquire") if ast.unparse(one) in released]


def _plainly_called(statements: Sequence[ast.stmt], method: str) -> Iterator[ast.expr]:
    """On what statements call a method, without an argument and without use of the answer."""
    for statement in statements:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and not call.args and not call.keywords:
            yield from _owner_called(call, method)


def _owner_called(call: ast.Call, method: str) -> list[ast.expr]:
    of_object = isinstance(call.func, ast.Attribute) and called_name(call) == method
    return [call.func.value] if of_object and isinstance(call.func, ast.Attribute) else []


def _function_names(tree: ast.Module) -> set[str]:
    return {
        one.name
        for one in ast.walk(tree)
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a function or a file, without what is in functions and classes within."""
    left = [*ast.iter_child_nodes(function)]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            left += ast.iter_child_nodes(node)


def _bound(node: ast.AST) -> Sequence[str]:
    """Return the names to which a piece of code gives a value."""
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return [node.name or ""]
    return []
