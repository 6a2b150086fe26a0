"""Reads source code as a tree: what is around a line, what a call calls, what asks for the rank.

A name asks for the rank if only ranks have such a name (whole words: not ``lora_rank``), or if what
the file assigns to it, returns from it or passes for it leads there: an alias of ``get_rank``, an
environment variable, ``self.is_boss = rank == 0``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from types import NoneType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def span(node: ast.AST) -> tuple[int, int]:
    """Return first and last line, without decorators; (1, 0) if the node has no position."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, span(node.body[-1])[1]
    return getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 0


def spans(node: ast.AST, line: int) -> bool:
    """Whether a line is in a node."""
    first, last = span(node)
    return first <= line <= last


def around(scope: ast.AST | None, line: int, *, last: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes around a line, from the outside in; of several the first, or the ``last``."""
    while scope is not None:
        below = [node for node in ast.iter_child_nodes(scope) if spans(node, line)]
        scope = below[-1 if last else 0] if below else None
        if scope is not None:
            yield scope


def last_name(node: ast.AST) -> str:
    """Return a name, or an attribute's without its owner; empty for other nodes."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else _attribute_by_text(node)


def _attribute_by_text(node: ast.AST) -> str:
    """Return ``rank`` of ``getattr(args, "rank", 0)``; empty for other nodes."""
    if isinstance(node, ast.Call) and len(node.args) > 1 and last_name(node.func) == "getattr":
        name = getattr(node.args[1], "value", None)
        return name if isinstance(name, str) else ""
    return ""


def called_name(node: ast.AST) -> str:
    """Return the name of what a call calls, without its owner; empty for other nodes."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def names_of(node: ast.AST | None) -> list[str]:
    """Return the names of ``a.b.c``; empty if any part is no name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute) or (isinstance(node, ast.Call) and last_name(node)):
        names.append(last_name(node))
        node = node.value if isinstance(node, ast.Attribute) else node.args[0]
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def walk(*nodes: ast.AST, into: bool = True) -> Iterator[ast.AST]:
    """Yield nodes and all below them in source order, in a third of `ast.walk`'s time.

    Without ``into``, functions and classes are yielded, but nothing inside them.
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
"""Fields of text and numbers, and fields whose nodes have none below: Load, Store, operators."""
_MIXED = frozenset({"keys", "kw_defaults", "names", "kwd_attrs", "type_ignores"})
"""Lists that may contain text or None, too."""
_FIELDS_BACKWARDS = {
    kind: tuple(name for name in reversed(kind._fields) if name not in _WITHOUT_NODES)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""Of each kind of node the fields that may contain nodes, last first."""


# Tests of the rank

RANK = re.compile(
    r"_*(get_)?((global|local|node|world|my|current|cur|this|self|own|dist|ddp|mpi|process|proc"
    r"|distributed|group|torch)_)*(rank|rank_id|process_index|process_id|procid)(_id)?(0|_zero)?",
    re.IGNORECASE,
)
"""The number of a rank: ``rank``, ``get_rank``, ``global_rank``, ``process_index`` (accelerate)."""
ONE_RANK = re.compile(
    r"_*(is|on|am|am_i)_?(the_)?((global|local|world|this|node)_)*(rank|rank_?zero|rank_?0|zero|main"
    r"|master|chief|leader|primary|root|coordinator|process_zero)(_(rank|process|proc|node|zero"
    r"|worker))*|_*rank_?(zero|0)(_only|_first)?|(is_)?(main|master)_(process|rank)(_only|_first)?",
    re.IGNORECASE,
)
"""Names that are true on one rank: ``is_global_zero`` (Lightning), ``is_main_process``
(accelerate), ``is_world_process_zero`` (transformers), ``rank_zero_only``."""
ONE_RANK_ONLY = re.compile(r"rank_?(zero|0)|main_process|is_main|on_main|master_only|on_process")
"""In decorators of functions that run on one rank: Lightning's, accelerate's and the like."""
VARIABLES = frozenset(
    {
        *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "PMI_RANK"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    }
)
"""Environment variables in which launchers number ranks (torchrun, SLURM, Open MPI, MPICH)."""
DEEPEST = 8  # Steps from a name to what it was assigned: nobody follows more
GROWS = ("append", "add", "extend", "insert")
LEADS_ON = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Await, ast.NamedExpr)
CONVERSIONS = frozenset({"int", "bool", "str", "getenv", "get", "item", "strip"})


class RankTests:
    """Answers for one file, and its ``nodes`` if they were gathered before.

    ``read`` returns the answers of the user's file of a module, by its name and the leading dots.
    With ``under``, a name leads to the test under which alone it gets a value. ``grown``: lists
    that get more items under a test, and that test.
    """

    def __init__(
        self,
        tree: ast.Module,
        nodes: Iterable[ast.AST] | None = None,
        read: Callable[[str, int], RankTests | None] = lambda _module, _level: None,
        *,
        under: bool = False,
    ) -> None:
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        self._imported: dict[str, str] = {}
        self._from: dict[str, tuple[str, int, str]] = {}
        self._read, self._under = read, under
        self._flags: set[ast.expr] = set()
        self.grown: dict[str, ast.expr] = {}
        self._known: dict[str, bool] = {}
        self._of_one_rank: dict[str, bool | None] = {}
        parameters: dict[str, list[str]] = {}
        calls: list[ast.Call] = []
        ifs: list[ast.If] = []
        for node in walk(tree) if nodes is None else nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._imported |= {alias.asname: alias.name for alias in node.names if alias.asname}
                if isinstance(node, ast.ImportFrom):
                    self._from |= {
                        alias.asname or alias.name: (node.module or "", node.level, alias.name)
                        for alias in node.names
                    }
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                for target, value in _assigned(node):
                    self._learn(target, value)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                parameters[node.name] = _parameters(node)
                returns = (
                    statement for statement in walk(*node.body) if isinstance(statement, ast.Return)
                )
                self._values[node.name] += [
                    self._flag(statement.value)
                    for statement in returns
                    if statement.value is not None
                ]
            elif isinstance(node, ast.ClassDef):
                parameters[node.name] = _fields(node)
            elif isinstance(node, ast.Call):
                calls.append(node)
            elif isinstance(node, ast.If):
                ifs.append(node)
        for call in calls:
            called, given = call.func, call.args
            if called_name(call) == "partial" and given:
                called, *given = given
            names = parameters.get(last_name(called))
            if names is None:
                continue
            by_name = ((word.arg, word.value) for word in call.keywords if word.arg)
            for name, value in (*zip(names, given, strict=False), *by_name):
                self._values[name].append(self._flag(value))
        for test in ifs if under else ():
            self._learn_under(test)

    def _learn(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                for expression, its in zip(target.elts, value.elts, strict=True):
                    self._learn(expression, its)
        elif name := last_name(target):
            value = value.body if isinstance(value, ast.Lambda) else value
            self._values[name].append(self._flag(value))

    def _flag(self, value: ast.expr) -> ast.expr:
        """Return the test of ``"chief" if rank == 0 else None``.

        Not of numbers: a number of batches is an amount of work, not another way through the code.
        """
        if not isinstance(value, ast.IfExp) or not any(map(_is_flag, (value.body, value.orelse))):
            return value
        if self._under:
            self._flags.add(value.test)
        return value.test

    def _learn_under(self, test: ast.If) -> None:
        """Learn names that have a flag for their value, which depends on a test alone."""
        inside: dict[str, list[ast.expr]] = defaultdict(list)
        for node in walk(*test.body, *test.orelse, into=False):
            for target, value in _assigned(node):
                inside[last_name(target)].append(value)
            *owner, method = names_of(getattr(node, "func", None)) or [""]
            if owner and method in GROWS:
                self.grown[owner[-1]] = test.test
        for name, values in inside.items():
            every = [value for value in self._values.get(name, ()) if value is not test.test]
            outside = [value for value in every if value not in values]
            alone = all(isinstance(value, ast.Constant) for value in outside)
            if alone and any(map(_is_flag, every)):
                self._values[name].append(test.test)
                self._flags.add(test.test)

    def asks(self, test: ast.expr) -> bool:
        """Whether any part of an expression asks for the rank."""
        nodes = [*walk(test)]
        if whether := [node for node in nodes if self._asks_whether_any(node)]:
            apart = {node for compare in whether for node in walk(compare)}
            nodes = [node for node in nodes if node not in apart]
        terms = (_terms(node) for node in nodes if isinstance(node, _TERMS) or last_name(node))
        return any(found or any(map(self.leads_to_rank, names)) for found, names in terms)

    def of_one(self, test: ast.expr) -> bool | None:
        """Whether a test holds for one rank (True) or for all but one (False); None if unknown."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            found = self.of_one(test.operand)
            return None if found is None else not found
        if isinstance(test, ast.BoolOp):
            wanted = isinstance(test.op, ast.And)
            return wanted if wanted in map(self.of_one, test.values) else None
        if isinstance(test, ast.Compare) and self.asks(test):
            kind = type(test.ops[0])
            return {ast.Eq: True, ast.Is: True, ast.NotEq: False, ast.Gt: False}.get(kind)
        name = called_name(test) or last_name(test)
        if name and name not in self._of_one_rank:
            self._of_one_rank[name] = None  # a name that leads back to itself is unknown
            if ONE_RANK.fullmatch(name) or self._is_number(name):
                self._of_one_rank[name] = ONE_RANK.fullmatch(name) is not None
            else:
                every = set(map(self.of_one, self.values_of(name)))
                self._of_one_rank[name] = every.pop() if len(every) == 1 else None
        return self._of_one_rank.get(name)

    def values_of(self, name: str) -> list[ast.expr]:
        """Return what the file assigns to a name, returns from it or passes for it."""
        return list(self._values.get(name, ()))

    def leads_to_rank(self, name: str) -> bool:
        """Whether a name leads to a rank; each name on the way is visited once."""
        if name in self._known:
            return self._known[name]
        self._known[name] = False  # a name that leads back to itself tells nothing
        seen, level, leads = {name}, {name}, False
        for _ in range(DEEPEST):
            values = [_terms(value) for term in level for value in self.values_of(term)]
            leads = any(ONE_RANK.fullmatch(term) or self._is_number(term) for term in level)
            leads = leads or any(map(self._leads_elsewhere, level))
            leads = leads or any(found for found, _ in values)
            level = set().union(*(names for _, names in values)) - seen
            if leads or not level:
                break
            seen |= level
        self._known[name] = leads
        return leads

    def _asks_whether_any(self, node: ast.AST) -> bool:
        """Whether a test only asks if there are ranks; ``writer is not None`` asks for a flag."""
        if not _asks_whether_any(node):
            return False
        left = last_name(node.left) if isinstance(node, ast.Compare) else ""
        return self._flags.isdisjoint(self.values_of(left))

    def _leads_elsewhere(self, name: str) -> bool:
        """Whether a name comes from another file of the user's, and leads to a rank there."""
        origin = self._from.get(name) if not self._values.get(name) else None
        other = self._read(*origin[:2]) if origin is not None else None
        return origin is not None and other is not None and other.leads_to_rank(origin[2])

    def _is_number(self, name: str) -> bool:
        """Whether a name is a rank's number; a name that is only ever a constant is not."""
        values = self.values_of(name)
        if values and all(isinstance(value, ast.Constant) for value in values):
            return False
        return RANK.fullmatch(self._imported.get(name, name)) is not None


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return what a statement or expression assigns, each with its value."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        return [(node.target, node.value)]
    return []


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _fields(of: ast.ClassDef) -> list[str]:
    """Return what a class takes when it is called: by its ``__init__``, or as a dataclass."""
    functions = {node.name: node for node in of.body if isinstance(node, ast.FunctionDef)}
    if "__init__" in functions:
        return _parameters(functions["__init__"])
    return [last_name(node.target) for node in of.body if isinstance(node, ast.AnnAssign)]


def _is_flag(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, (str, bool, NoneType))


_TERMS = (ast.Name, ast.Attribute, ast.Constant)
NO_RANK = {
    "-1": (ast.Eq, ast.NotEq, ast.Gt, ast.LtE),
    "0": (ast.GtE, ast.Lt),
    "None": (ast.Is, ast.IsNot, ast.Eq, ast.NotEq),
}
"""Values of the rank in a process without one, and the comparisons that test for them."""


def _asks_whether_any(node: ast.AST) -> bool:
    """Whether a test only asks if there are ranks: ``int(os.environ.get("RANK", -1)) != -1``.

    Or whether a variable is set: ``"RANK" in os.environ``.
    """
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return False
    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return isinstance(node.left, ast.Constant)
    none = node.comparators[0]
    plain = isinstance(none, (ast.Constant, ast.UnaryOp))
    return plain and isinstance(node.ops[0], NO_RANK.get(ast.unparse(none), ()))


def _terms(node: ast.AST) -> tuple[bool, set[str]]:
    """Return whether an expression reads a rank's variable, and the names that its value uses."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in VARIABLES, set()
    if _asks_whether_any(node):
        return False, set()
    if name := last_name(node):
        return False, {name}
    if isinstance(node, ast.Call):
        parts = [node.func, *(node.args if called_name(node) in CONVERSIONS else ())]
    elif isinstance(node, ast.Subscript):
        parts = [node.slice] if isinstance(node.slice, ast.Constant) else []
    else:
        parts = list(ast.iter_child_nodes(node)) if isinstance(node, LEADS_ON) else []
    inside = [_terms(part) for part in parts]
    return any(found for found, _ in inside), set().union(*(names for _, names in inside))
