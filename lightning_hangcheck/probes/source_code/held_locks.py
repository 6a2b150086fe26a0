"""Locks by their names in the source: which one a line takes, and which its calls are inside of.

A thread that takes a lock which an outer call of its own holds waits for itself: a signal's handler
that ran in the middle of ``with lock:``, or a method that calls another one which locks, too.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.probes.source_code.syntax import FUNCTIONS, around

if TYPE_CHECKING:
    from collections.abc import Iterator


class NamedLock(NamedTuple):
    """A lock as a line of source names it.

    Attributes:
        text: As written, for example ``self.lock``.
        root: The variable with which that begins.
        scope: Where that variable lives: a function around the line, or the whole file.
        own: It is one of the very call's own variables, which each call has anew.
    """

    text: str
    root: str
    scope: ast.AST
    own: bool


def lock_taken(tree: ast.Module, line: int) -> NamedLock | None:
    """Return the lock that a line takes; None where it takes none, or several, or by no name."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno == line:
            found += [item.context_expr for item in node.items]
        elif isinstance(node, ast.Call) and node.lineno == line and _acquires(node):
            found += [node.func.value] if isinstance(node.func, ast.Attribute) else []
    return _named(tree, found[0], line) if len(found) == 1 else None


def locks_held(tree: ast.Module, line: int) -> Iterator[NamedLock]:
    """Find the locks in whose ``with`` blocks a line is, within its function."""
    for node in _within_function(tree, line):
        if isinstance(node, ast.With) and node.body[0].lineno <= line:
            named = (_named(tree, item.context_expr, line) for item in node.items)
            yield from (one for one in named if one is not None)


def _acquires(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "acquire"


def _named(tree: ast.Module, expression: ast.expr, line: int) -> NamedLock | None:
    inner = expression
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    if not isinstance(inner, ast.Name):
        return None
    functions = [one for one in around(tree, line) if isinstance(one, FUNCTIONS)]
    scope = next((one for one in reversed(functions) if inner.id in _bound(one)), tree)
    own = bool(functions) and scope is functions[-1]
    return NamedLock(ast.unparse(expression), inner.id, scope, own)


def _within_function(tree: ast.Module, line: int) -> Iterator[ast.AST]:
    """What a line is in, within its innermost function: what is around that runs no more."""
    inside = list(around(tree, line))
    function = max((at for at, one in enumerate(inside) if isinstance(one, FUNCTIONS)), default=-1)
    yield from inside[function + 1 :]


def _bound(function: ast.AST) -> set[str]:
    """Return the names that a function makes its own, those of functions within it included."""
    declared = {
        name
        for one in ast.walk(function)
        if isinstance(one, (ast.Global, ast.Nonlocal))
        for name in one.names
    }
    assigned = {
        one.id
        for one in ast.walk(function)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    arguments = {one.arg for one in ast.walk(function) if isinstance(one, ast.arg)}
    return (assigned | arguments) - declared
