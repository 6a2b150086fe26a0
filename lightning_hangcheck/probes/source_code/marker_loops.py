"""Loops that wait until a file is gone: locks that people make of a file's mere existence.

``while os.path.exists(path): time.sleep(1)`` or ``try: os.mkdir(path)`` again and again: the kernel
sees only sleep, and no function's name tells. What tells is what the loop asks for before it ends.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard

from lightning_hangcheck.probes.source_code.syntax import FUNCTIONS, LOOPS, around, called_name

if TYPE_CHECKING:
    from collections.abc import Mapping

Loop: TypeAlias = "ast.For | ast.AsyncFor | ast.While"
OF_PATH_MODULE = frozenset({"exists", "lexists", "isfile", "isdir", "islink"})
"""``os.path``'s questions whether something is there, which take a path."""
OF_PATH_OBJECT = frozenset({"exists", "is_file", "is_dir", "is_symlink"})
"""pathlib's, which take none."""
MAKES_NEW = frozenset({"mkdir", "link", "symlink", "symlink_to", "hardlink_to"})
"""Calls that fail where there is something already: so they are used as locks."""
REFUSED = frozenset({"FileExistsError", "OSError", "IOError", "Exception"})
HARMLESS = frozenset(
    {
        *("sleep", "wait", "print", "debug", "info", "warning", "warn", "log", "write", "flush"),
        *("time", "monotonic", "perf_counter", "perf_counter_ns", "getpid", "get_rank"),
        *("append", "format", "str", "round", "Path", "fspath", "join"),
    }
)
"""Calls that end no such loop and bring no file away. Whatever else is called may do both."""
ASKS = OF_PATH_MODULE | OF_PATH_OBJECT | MAKES_NEW | {"open", "touch", "close", "fdopen"}
ENDS = (ast.Return, ast.Break, ast.Raise)


class MarkerLoop(NamedTuple):
    """A loop that goes on as long as a file is there.

    Attributes:
        path: What the source says of the file; it may need variables of the function to be known.
        of_path: Whether it is a path for certain: other things have an ``exists``, too.
        endless: Nothing else ends it: no time limit, no look for what makes the lock stale.
    """

    path: ast.expr
    of_path: bool
    endless: bool


class _Question(NamedTuple):
    """Whether a file is there: true where it is."""

    path: ast.expr
    of_path: bool
    alone: bool = True


def marker_loop(tree: ast.Module, line: int) -> MarkerLoop | None:
    """Tell whether the innermost loop around a line, in its function, waits for a file to go.

    Args:
        tree: A parsed file.
        line: Of a thread that stands there.
    """
    loop = loop_around(tree, line)
    if loop is None:
        return None
    functions = {one.name: one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}
    found = _asked_first(loop, functions) or _asked_inside(loop, functions) or _refused(loop)
    if found is None:
        return None
    endless = found.alone and isinstance(loop, ast.While) and _ends_no_other_way(loop)
    return MarkerLoop(found.path, found.of_path, endless)


def loop_around(tree: ast.AST, line: int) -> Loop | None:
    """Return the innermost loop around a line within the innermost function around it."""
    inside = [one for one in around(function_around(tree, line), line) if isinstance(one, LOOPS)]
    return inside[-1] if inside else None


def function_around(tree: ast.AST, line: int) -> ast.AST:
    """Return the innermost function around a line; the whole file where there is none."""
    functions = [one for one in around(tree, line) if isinstance(one, FUNCTIONS)]
    return functions[-1] if functions else tree


def _asked_first(loop: Loop, functions: Mapping[str, ast.FunctionDef]) -> _Question | None:
    """``while exists(path)``, or ``while not try_lock()`` of a function that is refused."""
    if not isinstance(loop, ast.While):
        return None
    question = _there(loop.test, functions)
    if question is None and _negated(loop.test):
        called = functions.get(called_name(loop.test.operand))
        refused = _refused(called) if called is not None else None
        question = _asked_by(called, refused)
    return question


def _asked_inside(loop: Loop, functions: Mapping[str, ast.FunctionDef]) -> _Question | None:
    """``if not exists(path): break`` as a statement of the loop."""
    for statement in loop.body:
        if (
            isinstance(statement, ast.If)
            and isinstance(statement.body[-1], (ast.Return, ast.Break))
            and _negated(statement.test)
            and (question := _there(statement.test.operand, functions)) is not None
        ):
            return question
    return None


def _refused(block: Loop | ast.FunctionDef) -> _Question | None:
    """``try: os.mkdir(path); break`` that is refused as long as it is there.

    What ends the loop may also be a name that its test asks for: ``while not acquired``.
    """
    asked = block.test if isinstance(block, ast.While) else None
    awaited = {one.id for one in ast.walk(asked) if isinstance(one, ast.Name)} if asked else set()
    for attempt in (one for one in block.body if isinstance(one, ast.Try)):
        success = [*attempt.body, *attempt.orelse]
        leaves = any(isinstance(one, (ast.Return, ast.Break)) for one in (*success, *block.body))
        leaves = leaves or not awaited.isdisjoint(_assigned(success))
        refused = any(_names(handler.type) & REFUSED for handler in attempt.handlers)
        made = (_made_new(one) for step in attempt.body for one in ast.walk(step))
        path = next((one for one in made if one is not None), None)
        if leaves and refused and path is not None:
            return _Question(path, of_path=True, alone=asked is None or _is_plain(asked))
    return None


def _assigned(statements: list[ast.stmt]) -> set[str]:
    targets = (one for each in statements if isinstance(each, ast.Assign) for one in each.targets)
    return {one.id for one in targets if isinstance(one, ast.Name)}


def _is_plain(test: ast.expr) -> bool:
    """Whether a test asks for one thing that is known already, and so for no time limit."""
    return not any(isinstance(one, (ast.BoolOp, ast.Call)) for one in ast.walk(test))


def _there(test: ast.expr, functions: Mapping[str, ast.FunctionDef]) -> _Question | None:
    """Read a test that is true where a file is there; functions of the same file are followed."""
    if isinstance(test, ast.BoolOp):
        every = (_there(one, functions) for one in test.values)
        found = next((one for one in every if one is not None), None)
        return found._replace(alone=False) if found is not None else None
    if not isinstance(test, ast.Call):
        return None
    name, owner = (
        called_name(test),
        test.func.value if isinstance(test.func, ast.Attribute) else None,
    )
    if name in OF_PATH_MODULE and len(test.args) == 1:
        module = owner is None or ast.unparse(owner).endswith("path")
        return _Question(test.args[0], of_path=module)
    if name in OF_PATH_OBJECT and owner is not None and not test.args:
        return _Question(owner, of_path=False)
    called = functions.get(name)
    last = called.body[-1] if called is not None else None
    if called is None or not isinstance(last, ast.Return) or last.value is None:
        return None
    return _asked_by(called, _there(last.value, {}), test)


def _asked_by(
    function: ast.FunctionDef | None, question: _Question | None, call: ast.Call | None = None
) -> _Question | None:
    """A question that a function asks, for whoever calls it; it may do more than ask."""
    if function is None or question is None:
        return None
    path = _given(question.path, function, call) if call is not None else question.path
    return question._replace(path=path, alone=question.alone and _only_asks(function.body))


def _given(path: ast.expr, called: ast.FunctionDef, call: ast.Call) -> ast.expr:
    """What the caller gave for a parameter that the path is."""
    names = [one.arg for one in called.args.args if one.arg not in ("self", "cls")]
    given = dict(zip(names, call.args, strict=False))
    return given.get(path.id, path) if isinstance(path, ast.Name) else path


def _made_new(node: ast.AST) -> ast.expr | None:
    """Return the path of a call that makes a file or folder only where there is none."""
    if not isinstance(node, ast.Call):
        return None
    name = called_name(node)
    method = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) != "os"
    told = {one.arg: ast.unparse(one.value) for one in node.keywords}
    exclusive = (
        (name in MAKES_NEW and told.get("exist_ok") != "True")
        or (name == "open" and any("O_EXCL" in ast.unparse(one) for one in node.args))
        or (name == "open" and any(_is_exclusive_mode(one) for one in node.args))
        or (name == "touch" and told.get("exist_ok") == "False")
    )
    if not exclusive:
        return None
    if method and isinstance(node.func, ast.Attribute):
        return node.func.value
    position = 1 if name in ("link", "symlink") else 0
    return node.args[position] if len(node.args) > position else None


def _is_exclusive_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value[:1] == "x"


def _ends_no_other_way(loop: ast.While) -> bool:
    """Whether nothing but the file's absence ends a loop."""
    asks_inside = isinstance(loop.test, ast.Constant)
    inside = (one for statement in loop.body for one in ast.walk(statement))
    exits = sum(isinstance(one, ENDS) for one in inside)
    return exits <= asks_inside and _only_asks(loop.body)


def _only_asks(body: list[ast.stmt]) -> bool:
    """Whether all that statements call is harmless, or asks whether something is there."""
    inside = (one for statement in body for one in ast.walk(statement))
    calls = {called_name(one) for one in inside if isinstance(one, ast.Call)}
    return calls <= HARMLESS | ASKS


def _negated(test: ast.expr) -> TypeGuard[ast.UnaryOp]:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _names(node: ast.AST | None) -> set[str]:
    """Names of exceptions that a handler catches."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} if node else {"OSError"}
