"""Finds the collectives that code reaches, and where the two sides of a test differ in them.

`Reach` lists the collectives of a function and of all that it calls, each with its call path.
`Partings` compares the branches of a test, and the code after it if one side leaves.
"""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from lightning_hangcheck.lint.project import (
    Callee,
    Class,
    Function,
    Module,
    blocks_of,
    callee,
    callee_of_object,
    parts,
    tail,
    targets_of,
)
from lightning_hangcheck.look.syntax import (
    FUNCTIONS,
    LOOPS,
    ONE_RANK,
    ONE_RANK_ONLY,
    RANK,
    VARIABLES,
    called_name,
    names_of,
    spans,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Step: TypeAlias = "tuple[str, str, int]"
"""A function, its file, and the line at which the path continues."""
Events: TypeAlias = "tuple[Event, ...]"
DEEPEST_CALLS = 40
MOST_ALIASES = 4
MOST_OF_A_FUNCTION = 24
"""Different collectives kept per function: ranks that call it diverge at the first."""
FOREIGN = frozenset(
    {"jax", "tensorflow", "tf", "paddle", "mxnet", "numpy", "np", "jnp", "lax", "triton", "tl"}
    | {"oneflow", "flow", "mindspore", "mx", "warp", "einops", "scipy"}
)
"""Libraries that have functions with the names of collectives."""
SINGLE = re.compile(
    r"(?!distributed_?type)\w*(world_?size|n_?gpus?|num_gpus?|(is_)?initiali[sz]ed|is_available|is_dist\w*|distributed"
    r"|multi_?gpu|use_dist\w*|num_processes|data_parallel\w*|nprocs?|do_parallel|dist)\w*"
    r"|(use_|is_|with_)?ddp(_is)?(_(active|enabled|initialized|available))?",
    re.IGNORECASE,
)
"""Names that tell whether there are several ranks; all ranks know that."""
SEVERAL = re.compile(
    r"\w*(world_?size|(is_)?initiali[sz]ed|num_processes|nprocs)\w*|(is_|use_)?(ddp|dist|distributed)",
    re.IGNORECASE,
)
"""The names among these that always refer to ranks."""
GROUPED = re.compile(
    r"(^|_|\b)(dp|tp|pp|cp|ep|sp|mp|ddp_group|data|tensor|pipe(line)?|model|expert|context|sequence|stage"
    r"|group|mesh|shard|replica\w*|intra|inter|coord|cluster|pg|local_world)(_|\b|$)",
    re.IGNORECASE,
)
"""Names of a rank within a group or mesh dimension; several ranks may have the same number."""
SHARDED = re.compile(
    rb"FSDP|FullyShardedDataParallel|fully_shard|[dD]eep_?[sS]peed|DEEPSPEED|zero3"
)
"""Shows that a file is written for models that are sharded over all ranks."""
SHARDS_WEIGHTS = re.compile(rb"FullyShardedDataParallelPlugin\s*\(")
SHARDS_ITSELF = re.compile(
    SHARDS_WEIGHTS.pattern
    + rb"|DeepSpeedPlugin\s*\(|deepspeed_config|prepare_deepspeed|args\.deepspeed"
)
"""Shows that a script shards its model over the ranks, always or as an option."""
SHARDS = re.compile(r"fsdp|deepspeed|shard|zero_?3|zero_stage", re.IGNORECASE)
"""Names that tell whether a model is sharded."""
BUFFERS = re.compile(
    rb"^(?!\s*(?:from|import)\b)(?!\s*\w+\s*=\s*[\w.]*BatchNorm)[^'\"#\n]*BatchNorm"
    rb"|^ {8}self\.register_buffer\(",
    re.MULTILINE,
)
"""A line that always gives a model a buffer; not a batch norm in a variable of its own."""
OPTIONS = re.compile(r"args|\w*(cfg|config)|opts?|hparams|conf|flags|settings|options", re.I)
"""Names of objects that hold the user's settings."""
SETTING = re.compile(
    rf"(not )?(\w+\.)*({OPTIONS.pattern})"
    r"(?!.*(rank|stage|main|master|leader|primary|worker))(\.\w+)+"
    r"( (==|!=|is|is not|<|>|<=|>=) ('\w*'|None|True|False|\d+))?"
    r"|(not )?self\.\w+ is (not )?None|(not )?is_(?!\w*[ctnhx](uda|pu)_|\w*xla)\w+_available\(\)",
    re.IGNORECASE,
)
"""A condition on settings, an object's parts or installed packages: the same on all ranks."""
GONE_HOOKS = re.compile(
    r"on_(keyboard_interrupt|pretrain_routine_(start|end)|init_(start|end)|(epoch|batch)_(start|end))"
    r"|(training|validation|test)_epoch_end"
)
"""Hooks that Lightning does not call since 2.0."""
GONE_CALLS = re.compile(rb"add_argparse_args|from_argparse_args|training_type_plugin")
"""Names that exist only in Lightning before 2.0."""
AGREES = re.compile(r"reduce|broadcast|gather|bcast|clip_grad_norm")
"""Calls after which all ranks have the same value; gradients are averaged before clipping."""
STATES = frozenset({"get_state_dict", "get_model_state_dict", "get_optimizer_state_dict"})
LEAVES = (ast.Return, ast.Continue, ast.Break)
ENTERED = ("__enter__", "__exit__")
ENDS = ("exit", "_exit", "abort")


@dataclass(frozen=True, slots=True)
class Event:
    """A collective that code reaches.

    Attributes:
        name: Name of the call that all sides must make.
        shown: The call as written, in full.
        library: Its library, with the version since which it is collective.
        node: The call in the function that was asked for.
        path: Steps from that function down to the collective.
        only: True if reached only when a test for one rank holds, False if only when it fails.
        sure: Whether it is collective for every model and setting.
        group: Whether a process group is passed.
        needs: Parameters of the function that must be true or false to reach it.
        guards: Conditions on it in the function that was asked for.
        conditional: Whether a function below adds a condition of its own.
        settings: Names of the settings that functions below test for it.
        paired: Whether one rank makes it first and then the others, or the reverse.
        sharded: Whether it is collective only for sharded models.
    """

    name: str
    shown: str
    library: str
    node: ast.expr
    path: tuple[Step, ...]
    only: bool | None = None
    sure: bool = True
    group: bool = False
    needs: frozenset[tuple[str, bool]] = frozenset()
    guards: frozenset[str] = frozenset()
    conditional: bool = False
    settings: frozenset[str] = frozenset()
    paired: bool = False
    sharded: bool = False

    @property
    def met(self) -> tuple[str, str]:
        """What the other side has to make; one of a pair must come from the same function."""
        return self.name, self.path[1][0] if self.paired and len(self.path) > 1 else ""

    @property
    def told(self) -> str:
        """The call, and the function through which it is reached."""
        return self.shown + (f" (through {self.path[1][0]})" if len(self.path) > 1 else "")


# The table of collectives


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of collectives.toml by call name."""
    text = files(__package__).joinpath("collectives.toml").read_bytes()
    rows = msgspec.toml.decode(text)["collective"]
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for key in ("type", "receiver"):
            if key in row:
                row[key] = re.compile(row[key])
        for key in {"text", "project"} & row.keys():
            row[key] = re.compile(row[key].encode())
        for name in row["names"]:
            found.setdefault(name, []).append(row)
    return found


def _row(target: Callee, function: Function, call: ast.Call | None) -> dict[str, Any] | None:
    """Return the table's row for a call, or for an attribute if ``call`` is None; else None."""
    module = function.module
    on = {
        word.arg
        for word in (call.keywords if call is not None else ())
        if getattr(word.value, "value", None) is True
    }
    for row in () if "no_dist" in on else _table().get(target.name, ()):
        if (
            row.get("read", False) is (call is None)
            and _is_of(row, target)
            and row.get("keyword") in {None, *on}
            and ("imports" not in row or module.imports_of(row["imports"]))
            and ("text" not in row or module.has(row["text"]))
            and ("project" not in row or module.project.has(row["project"]))
            and not (row.get("wrapped") and _of_plain_model(target, function))
        ):
            return row
    return None


SINCE = re.compile(r"(\w+) (\d+)\.(\d+)")
"""A library, and the version since which the call is collective."""
WRAPS = re.compile(r"DDP|Parallel|prepare|wrap|setup|initialize")
"""Calls that may make a model distributed."""


def _of_plain_model(target: Callee, function: Function) -> bool:
    """Whether a loss comes from a model that the same file makes and never wraps."""
    assigned = function.module.assigned
    models = {
        value.func.id
        for value in assigned.get(target.receiver, [])
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    }
    made = [value for name in models for value in assigned.get(name, [])]
    return bool(made) and not any(WRAPS.search(ast.unparse(value)) for value in made)


def _is_of(row: dict[str, Any], target: Callee) -> bool:
    if "module" in row:
        return target.path.startswith(row["module"] + ".")
    if "type" in row:
        kinds = (
            kind if "\\." in row["type"].pattern else kind.rpartition(".")[2]
            for kind in target.kinds
        )
        return any(row["type"].fullmatch(kind) for kind in kinds)
    if "receiver" in row:
        return row["receiver"].fullmatch(target.receiver) is not None
    parts = target.path.split(".")
    return not (FOREIGN & {parts[0], target.receiver})


# Rank tests


@dataclass(frozen=True)
class Test:
    """What a condition depends on.

    Attributes:
        asks: Whether it depends on the rank.
        side: True if it holds for one rank only, False if for all but one; None if unknown.
        exact: Whether its other side is exactly the other ranks.
        grouped: Whether the rank is a rank within a group or mesh dimension.
    """

    asks: bool = False
    side: bool | None = None
    exact: bool = False
    grouped: bool = False


class Tests:
    """Reads the conditions of functions, following calls into other files."""

    def __init__(self) -> None:
        self._known: dict[ast.expr, Test] = {}
        self._flags: dict[tuple[object, tuple[str, ...]], Test | None] = {}
        self._sides: dict[tuple[Module, str], bool | None] = {}
        self._callers_above = 0

    def of(self, test: ast.expr, function: Function) -> Test:
        """Return what a condition depends on."""
        if test not in self._known:
            self._known[test] = Test()  # a circular value tells nothing
            self._known[test] = self._read(test, function)
        return self._known[test]

    def _read(self, test: ast.expr, function: Function) -> Test:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.of(test.operand, function)
            side = None if inner.side is None else not inner.side
            return replace(inner, side=side)
        if isinstance(test, ast.BoolOp):
            return self._joined(test, function)
        ranks, names = function.module.ranks, names_of(test)
        of_args = names[-2:-1] in (["args"], ["training_args"])
        if of_args and names[-1] in ("should_save", "should_log"):
            return Test(True, True, True)  # transformers: rank 0, or the first of each machine
        if isinstance(test, ast.Compare) and _of_single(test):
            of_rank = any(map(RANK.fullmatch, last_names(test)))
            if _alone(test) is False or not of_rank:
                return Test()  # the number of ranks, from any source
        if not ranks.asks(test) or _asks_for_launcher(test):
            return self._elsewhere(test, function)
        if isinstance(test, ast.Name) and _is_option(test.id, function):
            return Test()  # an option such as rank_zero_only=True
        side = self._side(test, function, MOST_ALIASES)
        values = ranks.values_of(tail(test.func if isinstance(test, ast.Call) else test))
        joined = [self.of(value, function) for value in values if isinstance(value, ast.BoolOp)]
        exact = side is not None and all(value.exact for value in joined)
        return Test(True, side, exact, _grouped(test))

    def _side(self, test: ast.expr, function: Function, steps: int) -> bool | None:
        """Return the `Test.side` of a condition that reads the rank itself."""
        ranks = function.module.ranks
        if isinstance(test, ast.Compare):
            sides = [test.left, *test.comparators]
            if (listed := _first_or_none(test)) is not None:
                return listed if _is_rank_itself(test.left, function, MOST_ALIASES) else None
            if any(getattr(side, "value", None) == "" for side in sides):
                return None  # whether a variable is set
            number = any(_is_rank_itself(side, function, MOST_ALIASES) for side in sides)
            return ranks.of_one(test) if number and _with_constant(test) else None
        name = tail(test.func if isinstance(test, ast.Call) else test)
        if ONE_RANK.fullmatch(name):
            return True
        if _is_rank_itself(test, function, MOST_ALIASES):
            return False
        if not steps:
            return None
        key = (function.module, name)
        if key not in self._sides:
            self._sides[key] = None  # a circular name tells nothing
            found = {
                self.of(value, function).side
                if isinstance(value, (ast.BoolOp, ast.UnaryOp))
                else self._side(value, function, steps - 1)
                for value in ranks.values_of(name)
            }
            self._sides[key] = found.pop() if len(found) == 1 else None
        return self._sides[key]

    def _joined(self, test: ast.BoolOp, function: Function) -> Test:
        """Read an ``and``, which holds at most where each part holds, or an ``or``, the reverse."""
        values = [(value, self.of(value, function)) for value in test.values]
        asking = [part for value, part in values if part.asks and not _asks_for_text(value)]
        if not asking:
            return Test()
        others = [value for value, part in values if not part.asks]
        exact = len(asking) == 1 and asking[0].exact and all(map(_of_single, others))
        sides = {part.side for part in asking if part.side is not None}
        known = isinstance(test.op, ast.And) or (exact and bool(sides))
        side = sides.pop() if known and len(sides) == 1 else None
        return Test(True, side, exact, any(part.grouped for part in asking))

    def _elsewhere(self, test: ast.expr, function: Function) -> Test:
        """Read a flag by how it was set, or a call by what a function in another file returns."""
        if isinstance(test, (ast.Name, ast.Attribute, ast.Compare)):
            return self._set_by_one(test, function) or self._given(test, function)
        if not isinstance(test, ast.Call):
            return Test()
        for found in callee(test.func, function).functions:
            returned = [node.value for node in found.each(ast.Return) if node.value is not None]
            if returned and all(type(getattr(value, "value", 0)) is bool for value in returned):
                return self._by_constants(found)
            if found.module is not function.module:
                return _all_alike(self.of(expression, found) for expression in returned)
        return Test()

    def _by_constants(self, function: Function) -> Test:
        """Read a function that returns True or False under tests of the rank."""
        sides = {
            side is getattr(left.value, "value", None)
            for node in function.each(ast.If)
            for left in parts(ast.Return, *node.body[-1:])
            if (side := self.of(node.test, function).side) is not None
        }
        return Test(True, sides.pop(), True) if len(sides) == 1 else Test()

    def _given(self, test: ast.expr, function: Function) -> Test:
        """Read a parameter, or an attribute that keeps it, if all calls pass a rank test."""
        if isinstance(test, ast.Compare):
            side = FIRST.get(type(test.ops[0])) if ast.unparse(test.comparators[0]) == "0" else None
            carries = side is not None and self._carries_rank(test.left, function)
            return Test(True, side, True) if carries else Test()
        kept = _kept(test, function)
        if kept is None or self._callers_above >= DEEPEST_CALLS:
            return Test()
        self._callers_above += 1
        try:
            given = kept[0].module.project.given(*kept)
            return _all_alike(self.of(value, caller) for value, caller in given)
        finally:
            self._callers_above -= 1

    def _carries_rank(
        self, number: ast.expr, function: Function, steps: int = MOST_ALIASES
    ) -> bool:
        """Whether callers pass the number of a rank, by whatever name it has here."""
        kept = _kept(number, function) if steps else None
        if kept is None:
            return False
        project = kept[0].module.project
        given = project.given(*kept)
        if not given:
            return kept[0] in project.spawned and kept[0].parameters[:1] == [kept[1]]
        return all(
            _is_rank_itself(value, caller, MOST_ALIASES)
            or self._carries_rank(value, caller, steps - 1)
            for value, caller in given
        )

    def _set_by_one(self, test: ast.expr, function: Function) -> Test | None:
        """Read a flag or counter that one rank sets under its test, and else is constant."""
        flag, side = test, True
        if isinstance(test, ast.Compare):
            counted = isinstance(test.ops[0], (ast.Gt, ast.GtE)) and len(test.ops) == 1
            of_none = ast.unparse(test.comparators[0]) == "None"  # a writer that only rank 0 has
            flag = test.left if counted or of_none else test
            side = not isinstance(test.ops[0], (ast.Is, ast.Eq))
        path = names_of(flag)
        if not path or (len(path) > 1 and path[0] != "self"):
            return None
        key = (function.owner if len(path) > 1 else function, tuple(path))
        if key not in self._flags:
            self._flags[key] = None
            methods = function.owner.methods.values() if len(path) > 1 and function.owner else ()
            self._flags[key] = self._only_one_sets(path, [*methods] or [function])
        known = self._flags[key]
        return known and replace(known, side=side)

    def _only_one_sets(self, path: list[str], functions: list[Function]) -> Test | None:
        """Read what is set under a test for one rank, else to a false value, and never shared."""
        by_one, exact = False, True
        for function in functions:
            statements: list[ast.Assign | ast.AnnAssign | ast.AugAssign] = function.each(
                ast.Assign, ast.AnnAssign, ast.AugAssign
            )
            assigned = {
                node: node.value for node in statements if path in map(names_of, targets_of(node))
            }
            named: list[ast.Name | ast.Attribute] = function.each(ast.Name, ast.Attribute)
            stored = (name for name in named if isinstance(name.ctx, ast.Store))
            if sum(names_of(name) == path for name in stored) != len(assigned):
                return None  # set by a loop, a ``with`` or in a tuple
            if assigned and path[-1] in _given_to_all(function):
                return None
            of_one = {
                below
                for node in (function.each(ast.If) if assigned else ())
                if any(spans(node, each.lineno) for each in assigned)
                and self.of(node.test, function).side is True
                for below in walk(*node.body, into=False)
            }
            for node, value in assigned.items():
                if isinstance(value, ast.IfExp) and self.of(value.test, function).side is True:
                    by_one, value = True, value.orelse
                false = isinstance(value, ast.Constant) and not value.value
                if node in of_one:
                    by_one |= not false
                    # that rank may find that it is false
                    exact &= not isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp))
                elif not false or isinstance(node, ast.AugAssign):
                    return None
        return Test(True, True, exact) if by_one else None


FIRST = {ast.Eq: True, ast.LtE: True, ast.NotEq: False, ast.Gt: False}
"""Comparisons of a rank with 0: whether they hold for the first rank alone, or for the others."""


def _kept(value: ast.expr, function: Function) -> tuple[Function, str] | None:
    """Return the parameter that a name is or an attribute keeps, and its function."""
    path, owner = names_of(value), function.owner
    if path[:1] == ["self"] and len(path) == 2 and owner is not None:
        maker = owner.method("__init__")
        values = owner.attributes.get(path[1], ())
        if len(values) != 1 or maker is None:
            return None
        function, path = maker, names_of(values[0])
    known = len(path) == 1 and path[0] in function.parameters
    return (function, path[0]) if known else None


def _all_alike(found: Iterable[Test]) -> Test:
    """Return what all values depend on, if that is the same; stop at the first difference."""
    same = Test()
    for test in found:
        if not test.asks or (same.asks and same.side is not test.side):
            return Test()
        grouped = same.grouped or test.grouped
        same = replace(test, exact=test.exact and (same.exact or not same.asks), grouped=grouped)
    return same


def _given_to_all(function: Function) -> set[str]:
    """Return names that a function reduces or broadcasts, and names in their values."""
    calls = [call for call in function.each(ast.Call) if AGREES.search(called_name(call))]
    given = last_names(*(part for call in calls for part in call.args))
    assigned = function.each(ast.Assign)
    return given | last_names(
        *(assignment.value for assignment in assigned if given & last_names(*assignment.targets))
    )


def _is_rank_itself(node: ast.expr, function: Function, steps: int) -> bool:
    """Whether an expression is a rank's number, not something computed from it."""
    if isinstance(node, ast.Call) and called_name(node) in ("int", "getenv", "get"):
        return any(
            (isinstance(argument, ast.Constant) and argument.value in VARIABLES)
            or _is_rank_itself(argument, function, steps)
            for argument in node.args
        )
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in VARIABLES
    called = node.func if isinstance(node, ast.Call) and not names_of(node) else node
    name = names_of(called)[-1:] or [called.attr if isinstance(called, ast.Attribute) else ""]
    if not function.module.ranks.asks(called):
        return False
    if RANK.fullmatch(name[0]):
        return True
    values = function.module.ranks.values_of(name[0]) if steps else []
    return bool(values) and all(
        _is_rank_itself(expression, function, steps - 1) for expression in values
    )


def _asks_for_text(test: ast.expr) -> bool:
    """Whether a rank is compared with text: ``rank == "cpu"`` is true in a single process."""
    return isinstance(test, ast.Compare) and any(
        isinstance(getattr(side, "value", None), str) for side in test.comparators
    )


def _asks_for_launcher(test: ast.expr) -> bool:
    """Whether a test only asks if there are ranks: ``"RANK" in os.environ``.

    So does ``os.getenv("RANK")``: the text "0" is true.
    """
    called = names_of(test.func if isinstance(test, ast.Call) else test)[-2:]
    return called in (["os", "getenv"], ["environ", "get"]) or (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.In, ast.NotIn))
        and isinstance(test.left, ast.Constant)
    )


def _first_or_none(test: ast.Compare) -> bool | None:
    """Read ``local_rank in [-1, 0]``: the first rank, or the only process."""
    numbers = [ast.unparse(element) for element in getattr(test.comparators[0], "elts", ())]
    if "0" not in numbers or not set(numbers) <= {"-1", "0"}:
        return None
    return {ast.In: True, ast.NotIn: False}.get(type(test.ops[0]))


def _with_constant(test: ast.Compare) -> bool:
    """Whether a rank is compared with a number or a name for one, not a loop's variable."""
    sides = [test.left, *test.comparators]
    first = re.compile(r"\w*(zero|main|master|root|src|dst|MAIN|ROOT|MASTER)\w*")
    return len(sides) == 2 and any(
        isinstance(side, ast.Constant) or first.fullmatch(tail(side)) for side in sides
    )


def _grouped(test: ast.expr) -> bool:
    of_group = any(
        called_name(call) == "get_rank" and (call.args or call.keywords)
        for call in parts(ast.Call, test)
    )
    return of_group or any(map(GROUPED.search, last_names(test)))


def _ordinary(test: ast.expr) -> bool:
    """Whether all ranks of a job with several ranks usually get past a test that leaves."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return all(
        _of_single(expression)
        or (isinstance(expression, ast.Compare) and ast.unparse(expression).endswith(" is None"))
        for expression in parts
    )


def _of_single(test: ast.expr) -> bool:
    """Whether a condition only asks if there are several ranks, not what an object is."""
    if isinstance(test, ast.Call) and called_name(test) != "isinstance":
        given = map(ast.unparse, test.args)
        if any(name.isidentifier() and not OPTIONS.fullmatch(name) for name in given):
            return False
    return _alone(test) is False or any(map(SINGLE.fullmatch, last_names(test)))


def _of_whole_model(events: Events) -> Events:
    return tuple(replace(event, conditional=True) if event.sharded else event for event in events)


def _alone(test: ast.expr) -> bool | None:
    """Whether a condition holds only in a job of one process; False: it fails only there.

    ``local_rank == -1``, ``world_size == 1``, ``not dist.is_initialized()``.
    """
    if isinstance(test, ast.BoolOp):
        wanted = isinstance(test.op, ast.And)
        return wanted if wanted in map(_alone, test.values) else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _alone(test.operand)
        return None if inner is None else not inner
    if not isinstance(test, ast.Compare):
        called = test.func if isinstance(test, ast.Call) else test
        return False if SEVERAL.fullmatch(tail(called)) else None
    number, left = ast.unparse(test.comparators[0]), test.left
    if isinstance(left, ast.Call):  # not the ``dist`` of ``dist.get_rank()``
        left = left.args[0] if called_name(left) == "int" and left.args else left.func
    names = [called_name(left) or tail(left)]
    if number == "-1" and any(map(RANK.fullmatch, names)):
        return {ast.Eq: True, ast.NotEq: False}.get(type(test.ops[0]))
    if number == "1" and any(map(SEVERAL.fullmatch, names)):
        return {ast.Eq: True, ast.LtE: True, ast.NotEq: False, ast.Gt: False}.get(type(test.ops[0]))
    return None


def last_names(*nodes: ast.AST) -> set[str]:
    """Return the names in expressions: ``a``, ``b`` and ``c`` of ``a.b.c``."""
    return {
        path[-1]
        for node in walk(*nodes)
        if isinstance(node, (ast.Name, ast.Attribute)) and (path := names_of(node))
    }


# Reachable collectives


class Reach:
    """Finds the collectives that functions of a project make."""

    def __init__(self, own: frozenset[str] = frozenset()) -> None:
        self.tests = Tests()
        self.flags_of_handlers: dict[Module, set[str]] = {}
        """Flags that the signal handlers of a file set; filled on demand."""
        self._own = own
        self._functions: dict[Function, Events] = {}
        self._statements: dict[ast.stmt, Events] = {}
        self._set_by_one: dict[Module, set[str]] = {}
        self._below: dict[tuple[Function, ...], list[Function]] = {}
        """Methods with collectives, in subclasses, by those that they override."""
        self._under_way: set[Function] = set()
        self._one_rank: dict[Function, str] = {}

    def function(self, function: Function) -> Events:
        """Return the collectives of a function, each once; none while it is being read."""
        if function in self._functions:
            return self._functions[function]
        if function in self._under_way or len(self._under_way) > DEEPEST_CALLS:
            return ()
        self._under_way.add(function)
        try:
            found = self.block(function.body, function)
        finally:
            self._under_way.discard(function)
        if self.one_rank_decorator(function):
            found = tuple(replace(event, only=True) for event in found if event.only is not False)
        distinct: dict[tuple[object, ...], Event] = {}
        onlys = {(event.name, event.only) for event in found}
        switched = {
            (event.name, event.only, *event.needs) for event in found if len(event.needs) == 1
        }
        for event in found:
            if any(
                (event.name, event.only, (name, not value)) in switched
                for name, value in event.needs
            ):
                event = replace(event, needs=frozenset(), guards=frozenset())
            guards = {guard.removeprefix("not ") for guard in event.guards}
            asked = {
                guard
                for guard in guards
                if not SINGLE.fullmatch(guard) or _tells_of_objects(guard, function)
            }
            set_there = {
                guard for guard in asked if SETTING.fullmatch(_by_setting(guard, function))
            }
            own = bool(asked - set_there) and not event.needs
            below = replace(
                event,
                conditional=event.conditional or own,
                guards=frozenset(),
                # ``save_state`` of ``self.args.save_state``
                settings=event.settings.union(
                    guard.partition(" ")[0].rpartition(".")[2] for guard in set_there
                ),
                paired=event.only is not None and (event.name, not event.only) in onlys,
            )
            key = (event.name, event.only, event.sure, event.group, event.needs, below.conditional)
            distinct.setdefault(key, below)
        self._functions[function] = tuple(distinct.values())[:MOST_OF_A_FUNCTION]
        return self._functions[function]

    def one_rank_decorator(self, function: Function) -> str:
        """Return the decorator that runs a function on one rank only; empty if none does."""
        if function not in self._one_rank:
            limiting = (
                decorator for decorator in function.decorators if self.limits(decorator, function)
            )
            self._one_rank[function] = next(map(ast.unparse, limiting), "")
        return self._one_rank[function]

    def limits(self, decorator: ast.expr, function: Function) -> bool:
        """Whether a decorator, or what is called like one, runs a function on one rank only."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        names = names_of(called)
        known = callee(called, function).functions
        if not known:
            return bool(names) and ONE_RANK_ONLY.search(names[-1]) is not None
        for candidate in known:  # does it call its argument under a test for one rank?
            tests = parts(ast.If, candidate.node)
            first = next((node for node in tests if self.tests.of(node.test, candidate).side), None)
            calls = parts(ast.Call, *(first.body if first else ()))
            if any(names_of(call.func) == candidate.parameters[:1] for call in calls):
                return True
        return False

    def set_by_one(self, module: Module) -> set[str]:
        """Return numbers that one rank sets where others do not, and all ranks elsewhere."""
        if module not in self._set_by_one:
            one, every = set[str](), set[str]()
            for function in module.all_functions:
                nodes: list[ast.Assign | ast.AugAssign] = function.each(ast.Assign, ast.AugAssign)
                changed = {
                    node: {to.attr for to in targets_of(node) if isinstance(to, ast.Attribute)}
                    for node in nodes
                }
                mine = self._past_rank_tests(function) if any(changed.values()) else set()
                for node, names in changed.items():
                    number = isinstance(node, ast.AugAssign) or isinstance(node.value, ast.Constant)
                    if node in mine and number:
                        one |= names
                    elif not function.name.endswith("__init__"):
                        every |= names
            self._set_by_one[module] = one & every
        return self._set_by_one[module]

    def _past_rank_tests(self, function: Function) -> set[ast.AST]:
        """Return the nodes of a function that one rank alone comes to."""
        found: set[ast.AST] = set()
        for node in function.each(ast.If):
            side = self.tests.of(node.test, function).side
            if side is not None:
                found |= {*walk(*(node.body if side else node.orelse), into=False)}
        for place, statement in enumerate(function.body):
            if (
                isinstance(statement, ast.If)
                and isinstance(leaving(statement.body), ast.Return)
                and self.tests.of(statement.test, function).side is False
            ):
                found |= {*walk(*function.body[place + 1 :], into=False)}
        return found

    def block(self, block: Iterable[ast.stmt], function: Function) -> Events:
        """Return the collectives of consecutive statements."""
        found: list[Event] = []
        only: bool | None = None
        needed: frozenset[tuple[str, bool]] = frozenset()
        guards: frozenset[str] = frozenset()
        reached: list[tuple[ast.stmt, Events]] = []
        for node in block:
            reached.append((node, self.statement(node, function)))
            if isinstance(node, LEAVES):  # nothing after it runs
                break
        if not any(made for _, made in reached):
            return ()
        for statement, made in reached:
            if needed or guards:
                made = tuple(
                    replace(event, needs=event.needs | needed, guards=event.guards | guards)
                    for event in made
                )
            if only is not None:
                made = tuple(
                    event if event.only is not None else replace(event, only=only) for event in made
                )
            found += made
            if isinstance(statement, ast.If):
                test = self.tests.of(statement.test, function)
                if leaving(statement.body):
                    only = not test.side if test.exact and test.side is not None else only
                    after = _needed_after(statement.test, function)
                    needed |= after
                    passed = isinstance(statement.body[-1], ast.Continue)  # later iterations go on
                    if not (after or passed or test.side is not None or _ordinary(statement.test)):
                        guards |= {_plain(statement.test, value=False)}
        return tuple(found)

    def statement(self, statement: ast.stmt, function: Function) -> Events:
        """Return the collectives of a statement and all its blocks."""
        if statement not in self._statements:
            self._statements[statement] = tuple(self._of_statement(statement, function))
        return self._statements[statement]

    def _of_statement(self, node: ast.stmt, function: Function) -> Iterator[Event]:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return
        if isinstance(node, ast.If):
            yield from self.expression(node.test, function)
            yield from self._of_sides(node.test, node.body, node.orelse, function)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self.expression(child, function)
            elif isinstance(child, ast.withitem):
                yield from self.expression(child.context_expr, function)
                yield from self._entered(child.context_expr, function)
        for block in blocks_of(node):
            yield from self.block(block, function)

    def _entered(self, manager: ast.expr, function: Function) -> Iterator[Event]:
        """Yield the collectives of a class's ``__enter__`` and ``__exit__``."""
        if not isinstance(manager, ast.Call) or not (path := tuple(names_of(manager.func))):
            return
        if isinstance(known := function.module.meaning(path), Class):
            methods = (known.method(name) for name in ENTERED)
            for method in filter(None, methods):
                yield from self._through(method, manager, function)

    def _of_sides(
        self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], function: Function
    ) -> Iterator[Event]:
        yes, no = self.block(body, function), self.block(orelse, function)
        if not (yes or no):
            return
        asked = self.tests.of(test, function)
        alone = _alone(test)
        if alone is not None:
            yes, no = (() if alone else yes), (no if alone else ())
        if any(map(SHARDS.search, last_names(test))):
            if isinstance(test, ast.UnaryOp):
                yes = _of_whole_model(yes)
            else:
                no = _of_whole_model(no)
        names = [{event.name for event in side} for side in (yes, no)]
        if asked.side is not None:
            same = names[0] & names[1]
            yes = tuple(_only(event, asked.side, same) for event in yes)
            no = tuple(_only(event, not asked.side if asked.exact else None, same) for event in no)
            if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
                others = (value for value in test.values if not self.tests.of(value, function).asks)
                for other in others:
                    yes = _guarded(yes, other, function, value=True)
        elif names[0] != names[1] and (
            not _of_single(test) or isinstance(test, ast.Name) or _is_kept_option(test, function)
        ):
            yes = _guarded(yes, test, function, value=True)
            no = _guarded(no, test, function, value=False)
        yield from yes
        yield from no

    def expression(self, node: ast.expr, function: Function) -> Iterator[Event]:
        """Yield the collectives of an expression, without those of functions defined in it."""
        nodes = list(walk(node, into=False))
        perhaps = {
            below
            for choice in nodes
            if isinstance(choice, ast.IfExp)
            # a value's type is the same on all ranks
            and not (
                _of_single(choice.test) or called_name(choice.test) in ("isinstance", "hasattr")
            )
            for below in walk(choice.body, choice.orelse, into=False)
        }
        for child in nodes:
            made: Iterable[Event] = ()
            if isinstance(child, ast.Call):
                made = self.call(child, function)
            elif isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Load):
                made = self._reading(child, function)
            for event in made:
                yield replace(event, conditional=True) if child in perhaps else event

    def _reading(self, attribute: ast.Attribute, function: Function) -> Iterator[Event]:
        if attribute.attr in _table() and any(row.get("read") for row in _table()[attribute.attr]):
            target = callee(attribute, function)
            names = names_of(attribute)
            receiver = names[-2] if names else target.receiver
            row = _row(Callee(attribute.attr, receiver=receiver), function, None)
            if row is not None:
                yield self._event(attribute, row, function)
        elif (
            isinstance(attribute.value, ast.Name)
            and attribute.value.id == "self"
            and function.owner
        ):
            method = function.owner.method(attribute.attr)
            if method is not None and any(
                names_of(each)[-1:] in (["property"], ["cached_property"])
                for each in method.decorators
            ):
                yield from self._through(method, attribute, function)

    def call(self, call: ast.Call, function: Function) -> Iterator[Event]:
        """Yield the collective that a call is, or those of the project's functions it calls."""
        target = callee(call.func, function)
        if target.name in self._own:
            yield Event(target.name, target.name, "", call, (_step(function, call),))
            return
        row = None if target.functions else _row(target, function, call)
        if row is not None:
            yield self._event(call, row, function)
            return
        for reached in target.functions:
            yield from self._through(reached, call, function)
        given = [*_given(call, target, function), *_handed(call, function)]
        for one in given:
            if not one.functions and (row := _row(one, function, call)) is not None:
                event = self._event(call, row, function)
                name = str(row.get("as") or one.name)
                yield replace(event, name=name, conditional=True)
        found = [method for one in given for method in one.functions]
        for perhaps in found if given else self._perhaps(target, function):
            for event in self._through(perhaps, call, function):
                yield replace(event, conditional=True)

    def _perhaps(self, target: Callee, function: Function) -> list[Function]:
        """Return methods that a call may reach as well, or of which its name tells alone.

        A subclass may have its own. An object of unknown class has a method that few classes have.
        """
        project = function.module.project
        if target.choice:
            return list(target.choice)
        if not target.functions:
            named = project.methods.get(target.name, [])
            if not target.receiver or target.path or target.kinds:
                return []
            if COMMON.fullmatch(target.name):  # is the object called like the class: its evaluator?
                alike = target.receiver.replace("_", "").lower()
                named = [each for each in named if each.name.lower().startswith(f"{alike}.")]
            return named if len(named) <= MOST_OWNERS else []
        if not target.receiver:
            return []
        if target.functions not in self._below:
            owners = [found.owner for found in target.functions]
            below = project.overriding(target.name)
            named = [each for owner in owners if owner for each in below.get(owner, ())]
            others = dict.fromkeys(each for each in named if each.owner not in owners)
            self._below[target.functions] = list(filter(self.function, others))
        return self._below[target.functions]

    def _event(self, node: ast.expr, row: dict[str, Any], function: Function) -> Event:
        written = node.func if isinstance(node, ast.Call) else node
        sure = row.get("sure", True)
        if row.get("buffers") and not function.module.has(BUFFERS):
            sure = False
        if (since := SINCE.fullmatch(row["library"])) is not None:
            pinned = function.module.project.pinned(since[1], function.module)
            version = int(since[2]), int(since[3])
            old = since[1] == "Lightning" and (
                GONE_HOOKS.fullmatch(function.name.rpartition(".")[2])
                or (pinned is None and function.module.has(GONE_CALLS))
            )
            sure = sure and not ((pinned and pinned < version) or (old and version > (2, 0)))
        if row.get("sharded"):
            module, weights = function.module, row.get("zero3", False)
            itself = module.has(SHARDS_WEIGHTS if weights else SHARDS_ITSELF)
            for_sharded = module.has(SHARDED)
            sure = itself or (for_sharded and module.project.shards(module, weights=weights))
        name = str(
            row.get("as")
            or (written.attr if isinstance(written, ast.Attribute) else names_of(written)[-1])
        )
        return Event(
            name=name,
            shown=ast.unparse(written),
            library=row["library"],
            node=node,
            path=(_step(function, node),),
            sure=sure,
            sharded=row.get("sharded", False),
            conditional=name == "monitored_barrier" and "timeout" in ast.unparse(node),
            group=(isinstance(node, ast.Call) and _has_group(node, function))
            or _of_an_object(row, written, function),
        )

    def _through(self, called: Function, node: ast.expr, function: Function) -> Iterator[Event]:
        events = self.function(called)
        given = dict(called.defaults) if events else {}  # arguments by parameter
        if events and isinstance(node, ast.Call):
            given |= called.given_by(node)
        for event in events:
            handed = given.get(event.shown.partition(".")[0]) if len(event.path) == 1 else None
            itself = event.shown == event.shown.partition(".")[0]
            if handed is not None and _unwraps(handed, function, whole=itself):
                continue  # the model called there is not wrapped
            conditional = event.conditional
            if event.needs:
                bound = {  # parameters for which the call passes a constant
                    name: bool(value.value)
                    for name, value in given.items()
                    if isinstance(value, ast.Constant)
                }
                if any(bound.get(name) is (not value) for name, value in event.needs):
                    continue
                conditional |= any(name not in bound for name, _ in event.needs)
            path = (_step(function, node), *event.path)
            yield replace(event, node=node, path=path, needs=frozenset(), conditional=conditional)


RUNS = re.compile(r"submit|(run|call|execute|retry|with)(_\w+)?")
"""Names of calls that run the function that is their first argument, soon or in a thread."""


def _handed(call: ast.Call, function: Function) -> list[Callee]:
    """Resolve the function that a call is to run: ``self.run_later(reduce_metrics, step)``."""
    if not RUNS.fullmatch(called_name(call)) or not call.args or not names_of(call.args[0]):
        return []
    handed = callee(call.args[0], function)
    return [handed] if handed.functions else []


def _given(
    call: ast.Call, target: Callee, function: Function, steps: int = MOST_ALIASES
) -> list[Callee]:
    """Resolve a call of a parameter, or of an attribute that keeps one, by what callers give."""
    path, module = names_of(call.func), function.module
    if target.functions or target.path or target.kinds or not path or len(path) > 3:
        return []
    name, owner = ("__call__", path) if len(path) == 1 else (path[-1], path[:-1])
    if len(owner) == 2 and owner[0] == "self" and function.owner is not None:
        kept = {tuple(names_of(value)) for value in module.ranks.values_of(owner[1])}
        maker = function.owner.method("__init__")
        if maker is None or len(kept) != 1:
            return []
        function, owner = maker, list(kept.pop())
    if len(owner) != 1 or owner[0] not in function.parameters:
        return []
    found: dict[Callee, None] = {}
    for value, caller in module.project.given(function, owner[0]):
        resolved = callee(value, caller) if name == "__call__" and names_of(value) else None
        if resolved is None or not (resolved.functions or resolved.path):
            resolved = callee_of_object(name, tail(value), caller)
        if steps and isinstance(value, ast.Name) and value.id in caller.parameters:
            again = value if name == "__call__" else ast.Attribute(value, name, ast.Load())
            above = ast.copy_location(ast.Call(again, [], []), call)
            found |= dict.fromkeys(_given(above, Callee(name), caller, steps - 1))
        if resolved.functions or resolved.path or resolved.kinds:
            found[resolved] = None
    return list(found)[:MOST_OWNERS]


COMMON = re.compile(
    r"_.*|step|forward|backward|generate|train|eval|evaluate|predict|fit|test|run|start|stop|get|set"
    r"|add|put|pop|append|update|reset|clear|close|open|read|write|save|load|log|info|print|format"
    r"|(load_)?state_dict|(zero|clip)_grad\w*|(named_)?parameters|to|cuda|cpu|compute|call|apply|build"
)
"""Names of methods that many classes have, in libraries too."""
MOST_OWNERS = 2


def _is_option(name: str, function: Function) -> bool:
    """Whether a parameter has a constant default, or is somewhere passed True or False."""
    given = function.module.ranks.values_of(name) if name in function.parameters else []
    plainly = (value for value in given if isinstance(value, ast.Constant))
    default = function.defaults.get(name)
    return isinstance(default, ast.Constant) or any(
        isinstance(value.value, bool) for value in plainly
    )


WORLD_WIDE = re.compile(
    r"self|cls|\w*module|\w*(fabric|trainer|strategy|accelerator|dist\w*|comm\w*|utils?)"
)


def _of_an_object(row: dict[str, Any], written: ast.expr, function: Function) -> bool:
    """Whether a method's owner, of unknown type, may be a group of some ranks."""
    if row.get("communicator") and isinstance(written, ast.Attribute):
        return _kept(written.value, function) is not None  # a caller may give COMM_SELF
    if not row.get("anyone") or not isinstance(written, ast.Attribute):
        return False
    path = names_of(written.value)
    known = bool(path) and function.module.meaning(tuple(path)) is not None
    return (
        not known
        and not (path and WORLD_WIDE.fullmatch(path[-1]))
        and written.attr not in ("full_tensor", "backward")
    )


def _is_kept_option(test: ast.expr, function: Function) -> bool:
    """Whether an attribute keeps a parameter that is off by default: ``self.dist = dist``."""
    kept = _kept(test, function)
    default = kept[0].defaults.get(kept[1]) if kept is not None else None
    return isinstance(default, ast.Constant) and not default.value


def _step(function: Function, node: ast.expr) -> Step:
    return function.name, function.module.path, node.lineno


def _only(event: Event, side: bool | None, same: set[str]) -> Event:
    return event if event.name in same or event.only is not None else replace(event, only=side)


def _switch(
    test: ast.expr, function: Function, steps: int = MOST_ALIASES
) -> tuple[str, bool] | None:
    """Return the parameter that a test reads, and the value for which the test holds."""
    value = True
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, value = test.operand, not value
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and value:
        return next(
            filter(None, (_switch(expression, function, steps) for expression in test.values)), None
        )
    if not isinstance(test, ast.Name) or not steps:
        return None
    if test.id in (*function.parameters, *function.defaults):
        return test.id, value
    values = function.module.ranks.values_of(test.id)
    joined = [op for op in values if isinstance(op, ast.BoolOp)]
    all_joined = value and len(joined) == len(values)
    found = {_switch(op, function, steps - 1) for op in joined} if all_joined else set()
    return found.pop() if len(found) == 1 else None  # synchronize = distributed and ...


def _guarded(events: Events, test: ast.expr, function: Function, *, value: bool) -> Events:
    """Add a condition that does not depend on the rank to collectives."""
    switch = None if _of_single(test) else _switch(test, function)
    needs = {(switch[0], switch[1] is value)} if switch is not None else set()
    guards = {_plain(test, value=value)}
    return tuple(
        replace(event, needs=event.needs | needs, guards=event.guards | guards) for event in events
    )


def _plain(test: ast.expr, *, value: bool) -> str:
    """Return a condition as text, without double ``not``."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, value = test.operand, not value
    return ast.unparse(test) if value else f"not {ast.unparse(test)}"


def _by_setting(guard: str, function: Function) -> str:
    """Replace a name in a condition by the setting that it holds, and ``len(x)`` by ``x``."""
    if (found := re.fullmatch(r"(not )?(\w+)( .*)?", guard)) is not None:
        values = function.values_of(found[2])
        if len(values) == 1:
            guard = f"{found[1] or ''}{ast.unparse(values[0])}{found[3] or ''}"
    return re.sub(r"len\(([\w.]+)\)", r"\1", guard)


def _tells_of_objects(name: str, function: Function) -> bool:
    """Whether a name describes objects: ``distributed = any(map(is_sharded, models))``."""
    calls = parts(ast.Call, *function.values_of(name))
    return any(called_name(call) in ("any", "all", "isinstance", "hasattr") for call in calls)


def _needed_after(test: ast.expr, function: Function) -> frozenset[tuple[str, bool]]:
    """Return the parameter values with which code after a test that leaves is reached."""
    either = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    switches = (_switch(test, function) for test in either if not isinstance(test, ast.BoolOp))
    return frozenset((switch[0], not switch[1]) for switch in switches if switch is not None)


def _unwraps(given: ast.expr, function: Function, *, whole: bool) -> bool:
    """Whether an argument is a model without its wrapper: ``ddp.module``, ``unwrap(model)``.

    If the argument itself is called (``whole``), a model that is never wrapped counts as well.
    """
    values = []
    if isinstance(given, ast.Name) and given.id not in function.parameters:
        values = function.module.assigned.get(given.id, [])
    made = [call for call in values if isinstance(call, ast.Call)]
    unwrapped = made and not any(WRAPS.search(ast.unparse(call)) for call in made)
    if whole and unwrapped and len(made) == len(values):
        return True
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "module")
        or (isinstance(node, ast.Call) and "unwrap" in called_name(node))
        for node in walk(given, *values)
    )


def _has_group(call: ast.Call, function: Function) -> bool:
    """Whether a process group is passed, and not clearly the group of all ranks."""
    names = ("group", "process_group", "pg")
    given = [keyword.value for keyword in call.keywords if keyword.arg in names]
    given += [
        argument for argument in call.args if re.search(r"group|_pg$|^pg$|mesh", tail(argument))
    ]
    return any(
        not (isinstance(expression, ast.Constant) and expression.value is None)
        and tail(expression) != "WORLD"
        and not _of_all(function.module.assigned.get(tail(expression), []))
        for expression in given
    )


def _of_all(values: list[ast.expr]) -> bool:
    """Whether a group was made without naming ranks: of all ranks, by another backend."""
    return bool(values) and all(
        called_name(expression) == "new_group"
        and isinstance(expression, ast.Call)
        and not expression.args
        and not any(word.arg == "ranks" for word in expression.keywords)
        for expression in values
    )


def leaving(block: list[ast.stmt], *, raises: bool = False) -> ast.stmt | None:
    """Return the last statement of a block if it leaves a function or loop, else None."""
    kinds = (*LEAVES, ast.Raise) if raises else LEAVES
    return block[-1] if block and isinstance(block[-1], kinds) else None


def goes_on(block: list[ast.stmt]) -> bool:
    """Whether a rank may get past a block of an error's handler, or leave it, without an error."""
    for statement in block:
        if isinstance(statement, ast.Raise):
            return False
        if isinstance(statement, LEAVES):
            return True
        if isinstance(statement, ast.If):
            alone = _alone(statement.test)
            sides = [
                part
                for part, holds in ((statement.body, True), (statement.orelse, False))
                if alone is not holds
            ]
            if not any(map(goes_on, sides)):
                return False
    return True


def _last(block: list[ast.stmt]) -> ast.stmt | None:
    """Return the statement by which all paths through a block leave it, else None."""
    for statement in block:
        exits = isinstance(statement, ast.Expr) and called_name(statement.value) in ENDS
        if exits and ast.unparse(statement).removeprefix("sys.") not in ("exit()", "exit(0)"):
            return statement
        if isinstance(statement, (*LEAVES, ast.Raise)):
            return statement
        if isinstance(statement, ast.If):
            sides = _last(statement.body), _last(statement.orelse)
            if sides[0] is not None and sides[1] is not None:
                return next((side for side in sides if isinstance(side, ast.Continue)), sides[0])
    return None


# Where ranks diverge


@dataclass(frozen=True)
class Parting:
    """A place from which one side goes to collectives that the other does not make.

    Attributes:
        under: The `if`, or the expression with one, that separates the ranks.
        asked: What its test depends on.
        node: Node to underline: the call that leads to a collective, or the statement that leaves.
        made: Collectives that one side makes and the other does not.
        side: True if one rank makes them, False if all but one; None if unknown.
        leaves: The statement by which the other side leaves before them.
    """

    under: ast.If | ast.IfExp
    asked: Test
    node: ast.expr | ast.stmt
    made: Events
    side: bool | None
    leaves: ast.stmt | None

    @property
    def test(self) -> str:
        """The test as written in the source."""
        return ast.unparse(self.under.test)


@dataclass(frozen=True)
class _After:
    """Code that follows a block: to the end of the function, and of the loop's iteration."""

    function: tuple[list[ast.stmt], ...] = ()
    passing: tuple[list[ast.stmt], ...] = ()
    loop: tuple[list[ast.stmt], ...] = ()
    fails: bool = False
    """Whether all paths then end with an error: a launcher then ends the ranks that wait."""


class _Inside(NamedTuple):
    """The branch that a block is in: that of one rank, or that of all others."""

    under: ast.If
    asked: Test
    side: bool
    after: _After
    """What ranks run next that do not take this branch."""


class Partings:
    """Finds the partings of one function.

    Args:
        reach: Finds the collectives of functions.
        function: The function.
        local: Tells whether a condition depends on data that only one rank knows.
    """

    def __init__(
        self, reach: Reach, function: Function, local: Callable[[ast.expr, Function], bool]
    ) -> None:
        self._reach, self._function, self._local = reach, function, local
        self.found: list[Parting] = []
        self._block(function.body, _After(), frozenset(), None)
        for choice in function.each(ast.IfExp):
            asked = reach.tests.of(choice.test, function)
            if asked.side is not None and not self._agreed(choice, frozenset()):
                yes, no = (
                    tuple(reach.expression(part, function)) for part in (choice.body, choice.orelse)
                )
                other = not asked.side if asked.exact else None
                self._note(choice, asked, yes, no, asked.side, None, _After())
                self._note(choice, asked, no, yes, other, None, _After())

    def _block(
        self, block: list[ast.stmt], after: _After, loops: frozenset[str], inside: _Inside | None
    ) -> None:
        if inside is not None and (left := leaving(block)) is not None:
            branches = (inside.under.body, inside.under.orelse)
            if not any(block is branch for branch in branches):  # `_compare` handles these
                self._leaves_alone(left, block, inside)
        for place, statement in enumerate(block):
            rest = block[place + 1 :]
            last = _last(rest)
            if isinstance(last, (ast.Return, ast.Raise, ast.Expr)):
                then = _After((rest,), (rest,), fails=not isinstance(last, ast.Return))
            elif last is not None:
                then = _After((rest, *after.function), (rest,), after.loop)
            else:
                then = _After((rest, *after.function), (rest, *after.passing), after.loop)
            if isinstance(statement, ast.If):
                self._compare(statement, then, loops, inside.side if inside else None)
            if isinstance(statement, LOOPS):
                body = statement.body
                names = loops
                if not isinstance(statement, ast.While):
                    names |= {name.id for name in parts(ast.Name, statement.target)}
                within = _After((body, *then.function), (), (body,))
                # `break` leaves only this loop
                inner = inside and replace(inside.after, passing=(), loop=())
                self._block(body, within, names, inside and inside._replace(after=inner or after))
                self._block(statement.orelse, then, loops, inside)
            elif isinstance(statement, ast.If):  # which ranks take its branches, if known
                asked = self._reach.tests.of(statement.test, self._function)
                sides = inside, inside
                if asked.side is not None and not asked.grouped and inside is None:
                    branch = _Inside(statement, asked, asked.side, then)
                    sides = branch, branch._replace(side=not branch.side) if asked.exact else None
                alone = _alone(statement.test)
                if alone is not True:
                    self._block(statement.body, then, loops, sides[0])
                if alone is not False:
                    self._block(statement.orelse, then, loops, sides[1])
            else:
                for below in blocks_of(statement):
                    self._block(below, then, loops, inside)

    def _leaves_alone(self, left: ast.stmt, block: list[ast.stmt], inside: _Inside) -> None:
        """Note that one rank leaves from within its branch while the others continue."""
        made = self._skipped(left, inside.after)
        others = self._reach.block(block, self._function)
        for node in parts(ast.If, inside.under):
            if any(block is branch for branch in (node.body, node.orelse)) and (
                _of_single(node.test)
                or SETTING.fullmatch(_by_setting(ast.unparse(node.test), self._function))
            ):
                made = tuple(replace(event, conditional=True) for event in made)
        self._note(inside.under, inside.asked, made, others, not inside.side, left, inside.after)

    def _comes_again(self, left: ast.stmt) -> bool:
        """Whether a rank goes back to the head of ``while True``, and the others wait for it."""
        loops: list[ast.For | ast.While] = self._function.each(ast.For, ast.While)
        around = [loop for loop in loops if left in walk(*loop.body, into=False)]
        inner = max(around, key=lambda loop: loop.lineno, default=None)
        return isinstance(inner, ast.While) and isinstance(inner.test, ast.Constant)

    def _compare(
        self, node: ast.If, after: _After, loops: frozenset[str], inside: bool | None
    ) -> None:
        asked = self._reach.tests.of(node.test, self._function)
        if not (asked.asks or self._local(node.test, self._function)):
            return
        if self._agreed(node, loops):
            return
        raises = asked.side is not None
        exits = [leaving(block, raises=raises) for block in (node.body, node.orelse)]
        if inside is not None:
            exits = [None, None]
        yes = self._reach.block(node.body, self._function)
        no = self._reach.block(node.orelse, self._function)
        if exits[0] is not None and exits[1] is None:
            no += self._skipped(exits[0], after)
        elif exits[1] is not None and exits[0] is None:
            yes += self._skipped(exits[1], after)
        side = asked.side
        if inside is None or side is not (not inside):
            self._note(node, asked, yes, no, side, exits[1], after)
        chained = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        # an elif may test the reverse of the other parts of the test
        other = None if side is None or (chained and not asked.exact) else not side
        if inside is None or other is not (not inside):
            self._note(node, asked, no, yes, other, exits[0], after)

    def _skipped(self, leaves: ast.stmt, after: _After) -> Events:
        ends = isinstance(leaves, (ast.Return, ast.Raise))
        blocks = after.function if ends else after.passing
        blocks += after.loop if isinstance(leaves, ast.Break) else ()
        made = tuple(
            event for block in blocks for event in self._reach.block(block, self._function)
        )
        # a launcher ends the ranks that wait for one that raises, if nothing catches the error
        if isinstance(leaves, ast.Raise) or (
            isinstance(leaves, ast.Continue) and self._comes_again(leaves)
        ):
            return tuple(replace(event, conditional=True) for event in made)
        return made

    def _note(
        self,
        node: ast.If | ast.IfExp,
        asked: Test,
        made: Events,
        others: Events,
        side: bool | None,
        leaves: ast.stmt | None,
        after: _After,
    ) -> None:
        names = {event.name for event in others}
        # conditions that the other parts of the test rule out where the ranks diverge
        never: set[str] = set()
        if isinstance(node.test, ast.BoolOp):
            either = isinstance(node.test.op, ast.Or)
            never = {_plain(expression, value=either) for expression in node.test.values}
        alone = tuple(
            replace(event, conditional=True)
            if after.fails
            or event.guards & self._switched
            or (event.settings and event.settings & self._asked(node))
            else event
            for event in made
            if event.name not in names
            and (
                event.only is None or (event.paired and event.only is side and len(event.path) > 1)
            )
            and not event.guards & never
            and event.node.lineno < self._end
            and not (event.name in STATES and event.node.lineno < self._sharded)
        )
        if not alone:
            return
        last = node.end_lineno or node.lineno
        inside = [event for event in alone if node.lineno <= event.node.lineno <= last]
        blame = inside[0].node if inside else leaves or node.test
        self.found.append(
            Parting(
                under=node,
                asked=asked,
                node=blame,
                made=tuple(inside) or alone,
                side=side,
                leaves=None if inside else leaves,
            )
        )

    def _agreed(self, node: ast.If | ast.IfExp, loops: frozenset[str]) -> bool:
        """Whether ranks agreed on a test's names before, or each reaches it in a loop."""
        names, ranks = _ids(node.test), self._function.module.ranks
        if ranks.asks(node.test):  # the owner in ``accelerator.is_main_process`` is no value
            owners = [attribute.value for attribute in parts(ast.Attribute, node.test)]
            names -= {name.id for name in owners if isinstance(name, ast.Name)}
        compared = parts(ast.Compare, node.test)
        if any(_ids(compare) & loops and ranks.asks(compare) for compare in compared):
            return True
        return self._asked_there(node.test) or bool(names & self._agreed_names(node.lineno))

    @cached_property
    def _end(self) -> int:
        """Line at which process groups are destroyed: from there each process is alone."""
        calls = self._function.each(ast.Call)
        ends = [call.lineno for call in calls if called_name(call) == "destroy_process_group"]
        return min(ends, default=sys.maxsize)

    @cached_property
    def _switched(self) -> set[str]:
        """Conditions that the function sets to a constant somewhere, perhaps on this path."""
        assigned = self._function.each(ast.Assign)
        return {
            ast.unparse(target)
            for assign in assigned
            if isinstance(assign.value, ast.Constant)
            for target in assign.targets
        }

    def _asked(self, node: ast.If | ast.IfExp) -> set[str]:
        """Return names in the tests on the way to a node: settings read there make it uncertain."""
        return last_names(
            *(
                branch.test
                for branch in self._function.each(ast.If)
                if branch.lineno <= node.lineno
                and (leaving(branch.body) or node.lineno <= (branch.end_lineno or 0))
            )
        )

    @cached_property
    def _sharded(self) -> int:
        """Last line that shards a model: before it, each rank has its own state."""
        calls = self._function.each(ast.Call)
        return max((call.lineno for call in calls if "fully_shard" in called_name(call)), default=0)

    def _agreed_names(self, before: int) -> set[str]:
        """Return names that went through a collective above a line, or derive only from such."""
        found: set[str] = set()
        above = (node for node in self._function.nodes if getattr(node, "lineno", before) < before)
        for node in sorted(above, key=lambda child: getattr(child, "lineno", 0)):
            if isinstance(node, ast.Call) and AGREES.search(called_name(node)):
                found |= _ids(*node.args)
            elif isinstance(node, ast.Assign) and self._is_agreed(node.value, found):
                found |= _ids(*node.targets)
        return found

    def _asked_there(self, value: ast.expr) -> bool:
        """Whether ranks agree on a value where it is asked for."""
        return any(
            AGREES.search(called_name(call))
            # the called function may agree on it; deeper collectives are about other values
            or any(
                AGREES.search(event.shown) and len(event.path) == 2
                for event in self._reach.call(call, self._function)
            )
            for call in parts(ast.Call, value)
        )

    def _is_agreed(self, value: ast.expr, agreed: set[str]) -> bool:
        if self._asked_there(value):
            return True
        calls = parts(ast.Call, value)
        names = _ids(value) - {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        return bool(names) and names <= agreed


def _ids(*nodes: ast.AST) -> set[str]:
    """Return the variables in expressions; attributes of ``self`` as ``self.loss``."""
    attributes = parts(ast.Attribute, *nodes)
    own = {
        f"self.{attribute.attr}"
        for attribute in attributes
        if names_of(attribute.value) == ["self"]
    }
    return own | {name.id for name in parts(ast.Name, *nodes) if name.id != "self"}
