"""Works out a path that source code names, from the variables that a stack shows. Pure."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from lightning_hangcheck.probes.source_code.syntax import called_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def path_text(path: ast.expr, values: Mapping[str, str], function: ast.AST) -> str:
    """Work out a path from the variables of its function and what the function assigns.

    Args:
        path: An expression.
        values: Variables whose value is a text.
        function: Or module, in which names were assigned.

    Returns:
        Empty where it cannot be told.
    """
    return _Paths(values, function).text(path, 0)


DEEPEST = 6
"""Steps from a name to what it was assigned."""
JOINS = frozenset({"join", "joinpath", "Path", "PurePath", "PosixPath", "str", "fspath"})


class _Paths:
    """Works out paths from texts."""

    def __init__(self, values: Mapping[str, str], function: ast.AST) -> None:
        self._values = values
        self._assigned = dict(_assignments(function))

    def text(self, node: ast.expr, depth: int) -> str:
        """Return a text, empty where any part of it is not known."""
        if depth > DEEPEST:
            return ""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else ""
        if isinstance(node, ast.Name):
            assigned = self._assigned.get(node.id)
            known = self._values.get(node.id, "")
            return known or (self.text(assigned, depth + 1) if assigned is not None else "")
        if isinstance(node, ast.JoinedStr):
            inner = [
                one.value if isinstance(one, ast.FormattedValue) else one for one in node.values
            ]
            return self._joined("", inner, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Add)):
            between = "/" if isinstance(node.op, ast.Div) else ""
            return self._joined(between, [node.left, node.right], depth)
        if isinstance(node, ast.Call) and called_name(node) in JOINS:
            return self._joined("/", node.args, depth)
        return ""

    def _joined(self, between: str, parts: Sequence[ast.expr], depth: int) -> str:
        texts = [self.text(one, depth + 1) for one in parts]
        return between.join(texts) if texts and all(texts) else ""


def _assignments(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
