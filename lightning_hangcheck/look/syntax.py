"""What Python's syntax tree calls functions and loops, what a line is in, and what a call calls."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def span(node: ast.AST) -> tuple[int, int]:
    """Return first and last line; none of what has no place. Decorators belong to what follows."""
    return getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 0


def spans(node: ast.AST, line: int) -> bool:
    """Whether a line is in it."""
    first, last = span(node)
    return first <= line <= last


def around(scope: ast.AST | None, line: int, *, last: bool = False) -> Iterator[ast.AST]:
    """Yield all that a line is in below a node, from the outside in; of several the first."""
    while scope is not None:
        below = [node for node in ast.iter_child_nodes(scope) if spans(node, line)]
        scope = below[-1 if last else 0] if below else None
        if scope is not None:
            yield scope


def last_name(node: ast.AST) -> str:
    """Return a name, or an attribute's without its owner; empty of all else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def called_name(node: ast.AST) -> str:
    """Return the name of what a call calls, without its owner; empty of all else."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def names_of(node: ast.AST | None) -> list[str]:
    """Return the names of ``a.b.c``; nothing where any part is no name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def walk(*nodes: ast.AST, into: bool = True) -> Iterator[ast.AST]:
    """Yield nodes and all below them, in the order of the source: a third of `ast.walk`'s time.

    Args:
        nodes: Where to begin.
        into: Whether to go on into functions and classes, which are yielded in any case.
    """
    pending = list(nodes[::-1])
    while pending:
        node = pending.pop()
        yield node
        kind = type(node)
        if kind in _CLOSED and not into:
            continue
        for name in _FIELDS_BACKWARDS[kind]:
            value = getattr(node, name, None)
            if type(value) is not list:
                if isinstance(value, ast.AST):
                    pending.append(value)
            elif name in _MIXED:
                pending += [part for part in reversed(value) if isinstance(part, ast.AST)]
            elif value:
                pending += value[::-1]


_CLOSED = frozenset({*FUNCTIONS, ast.ClassDef})
_WITHOUT_NODES = frozenset(
    {"ctx", "op", "id", "attr", "arg", "kind", "level", "module", "asname", "simple", "conversion"}
    | {"is_async", "type_comment", "rest", "tag", "lineno"}
)
"""Fields of text and numbers, and those whose nodes have nothing below: Load, Store, operators."""
_MIXED = frozenset({"keys", "kw_defaults", "names", "kwd_attrs", "type_ignores"})
"""Lists in which text or None may stand, too."""
_FIELDS_BACKWARDS = {
    kind: tuple(name for name in reversed(kind._fields) if name not in _WITHOUT_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""Of each kind of node the fields below which there may be others, the last first."""
