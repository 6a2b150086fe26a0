"""What Python's syntax tree calls functions and loops, and the name of what a call calls."""

from __future__ import annotations

import ast

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def called_name(node: ast.AST) -> str:
    """Return the name of what a call calls, without its owner; empty of all else."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))
