"""The lint rules. A rule's docstring is its page: the finding, why it hangs, and the fix.

A rule checks one function at a time. A finding is an `error` if one side of a rank test certainly
reaches a collective and the other side does not; otherwise it is a note.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from lightning_hangcheck.lint.project import Function, blocks_of, callee, parts, tail, targets_of
from lightning_hangcheck.lint.reached_collectives import (
    AGREES,
    GROUPED,
    OPTIONS,
    Event,
    Parting,
    Partings,
    Reach,
    goes_on,
    last_names,
    leaving,
)
from lightning_hangcheck.look.syntax import (
    LOOPS,
    ONE_RANK,
    RANK,
    called_name,
    names_of,
    span,
    spans,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightning_hangcheck.model.slugs import Cause

Severity: TypeAlias = Literal["error", "note"]


@dataclass(frozen=True)
class Found:
    """What a rule found.

    Attributes:
        node: Node to underline.
        message: The problem, in a sentence.
        event: The collective that is reached, with the call path to it.
        also: Other lines on which an ignore comment counts: the line of the test.
    """

    node: ast.expr | ast.stmt
    message: str
    severity: Severity = "note"
    event: Event | None = None
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A rule, and the cause that a verdict gives for such a hang.

    Attributes:
        remedy: Beginning of the cause's remedy that fits, after its place; or a whole text.
    """

    code: str
    check: Callable[[Code], Iterator[Found]]
    cause: Cause
    remedy: str
    see: str
    notes_only: bool = False

    @property
    def doc(self) -> str:
        """The docstring of the check."""
        return self.check.__doc__ or ""


RULES: dict[str, Rule] = {}
LIGHTNING = "https://github.com/Lightning-AI/pytorch-lightning/issues"
TORCH = "https://github.com/pytorch/pytorch/issues"
TORCH_DOCS = "https://docs.pytorch.org/docs/stable"
DIST_DOCS = f"{TORCH_DOCS}/distributed.html"


def rule(
    code: str, cause: Cause, remedy: str, see: str, *, notes_only: bool = False
) -> Callable[[Callable[[Code], Iterator[Found]]], Callable[[Code], Iterator[Found]]]:
    """Register a rule under its code."""

    def add(check: Callable[[Code], Iterator[Found]]) -> Callable[[Code], Iterator[Found]]:
        RULES[code] = Rule(code, check, cause, remedy, see, notes_only)
        return check

    return add


@dataclass(frozen=True)
class Code:
    """One function, and what is known about it."""

    function: Function
    reach: Reach

    @cached_property
    def partings(self) -> list[Parting]:
        """Places in the function where ranks diverge."""
        if not self.makes_any:
            return []
        found = Partings(self.reach, self.function, self.is_local).found
        owner, answering = self.function.owner, PAIRED.get(self.function.name.rpartition(".")[2])
        other = owner and answering and owner.method(answering)
        elsewhere = Partings(self.reach, other, self.is_local).found if found and other else []
        return _without_meetings(found, elsewhere)

    @cached_property
    def blocks(self) -> list[list[ast.stmt]]:
        """The function's body and all blocks inside it."""
        statements = (node for node in self.function.nodes if isinstance(node, ast.stmt))
        return [self.function.body, *(block for node in statements for block in blocks_of(node))]

    @cached_property
    def makes_any(self) -> bool:
        """Whether any statement has a collective, reachable or not. Most functions have none."""
        return any(
            self.reach.statement(node, self.function)
            for node in (*self.function.body, *self.function.nodes)
            if isinstance(node, ast.stmt)
        )

    def is_local(self, test: ast.expr, function: Function) -> bool:
        """Whether a condition depends on data or an attribute that only this rank knows."""
        if is_local(test, function):
            return True
        kept = self.reach.set_by_one(function.module)
        if not kept:
            return False
        calls = (callee(call.func, function).functions for call in parts(ast.Call, test))
        asked = [test, *(ret for found in calls for each in found for ret in each.each(ast.Return))]
        return any(attribute.attr in kept for attribute in parts(ast.Attribute, *asked))

    @cached_property
    def work_of_one(self) -> list[tuple[list[ast.stmt], int, ast.If]]:
        """The `if`s of which one rank alone runs the body, with their blocks and places there."""
        module, tests = self.function.module, self.reach.tests
        return [
            (block, place, node)
            for block in (self.blocks if self.makes_any or module.has(NAMES_ONE) else ())
            for place, node in enumerate(block)
            if isinstance(node, ast.If)
            # follows a test into other files only where that may matter
            and (self.makes_any or module.ranks.asks(node.test))
            and tests.of(node.test, self.function).side is True
        ]

    def calls_of(self, block: list[ast.stmt]) -> list[ast.Call]:
        """Return calls in some statements, and in the project's functions that these call."""
        calls = [*parts(ast.Call, *block, into=False)]
        below = [each for call in calls for each in callee(call.func, self.function).functions]
        return [*calls, *(call for function in below for call in function.each(ast.Call))]

    def made_in(self, block: list[ast.stmt]) -> list[Event]:
        """Return collectives that some statements make for every model and on every rank."""
        if not self.makes_any:
            return []
        return [
            event
            for event in self.reach.block(block, self.function)
            if event.sure and event.only is None
        ]

    def made_after(self, block: list[ast.stmt], place: int, callers: int = 2) -> list[Event]:
        """Return collectives after a statement of a block, or after calls of the function."""
        if made := self.made_in(block[place + 1 :]):
            return made
        calls = self.function.module.project.calls_of(self.function) if callers else ()
        for call, caller in calls:
            above = Code(caller, self.reach)
            for around in above.blocks:
                at = next((at for at, node in enumerate(around) if spans(node, call.lineno)), None)
                if at is not None and (made := above.made_after(around, at, callers - 1)):
                    return made
        return []


NAMES_ONE = re.compile(rb"rank|main_process|master|is_(main|chief|\w*zero)|process_index")
"""A file without any of these asks only through others which rank it is."""
PAIRED = {"__enter__": "__exit__", "__exit__": "__enter__"}
"""Methods of which a rank that calls one also calls the other."""


def _without_meetings(found: list[Parting], elsewhere: list[Parting]) -> list[Parting]:
    """Drop collectives that another branch also makes: rank 0 goes first, then the rest.

    Args:
        found: Partings of the function.
        elsewhere: Partings of the method paired with it.
    """
    kept = []
    for parting in found:
        names = {
            event.met
            for other in (*found, *elsewhere)
            if other.under is not parting.under
            and parting.asked.asks
            and other.asked.asks
            and (
                other.side is None
                or other.side is not parting.side
                or (
                    other.test != parting.test
                    and not _same_rank(other.under.test, parting.under.test)
                )
            )
            for event in other.made
        }
        if made := tuple(event for event in parting.made if event.met not in names):
            kept.append(replace(parting, made=made))
    return kept


def _same_rank(*tests: ast.expr) -> bool:
    """Whether two tests hold for the same rank, by its number or by a name for rank 0."""
    ranks = [
        {
            side.value
            for compare in parts(ast.Compare, test)
            if any(map(RANK.fullmatch, last_names(compare)))
            for side in (compare.left, *compare.comparators)
            if isinstance(side, ast.Constant)
        }
        or {0 for name in last_names(test) if ONE_RANK.fullmatch(name)}
        for test in tests
    ]
    return bool(ranks[0]) and ranks[0] == ranks[1]


FILE_TESTS = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir"})
LOCAL_CALLS = (
    FILE_TESTS
    | {"isnan", "isfinite", "isinf", "is_nan", "any_nan", "numel", "item"}
    | {"done", "is_alive", "poll", "is_set", "empty", "qsize"}  # of its own threads and queues
    | {
        "random",
        "uniform",
        "randint",
        "rand",
        "choice",
        "memory_allocated",
        "memory_reserved",
        "mem_get_info",
    }
)
LOCAL_NAMES = re.compile(
    r"(local_)?(batch(es)?|loss(es)?|samples?|inputs?|targets?|labels?|outputs?|preds?|predictions"
    r"|logits|grads?|gradients?|mask|boxes|instances|items|rows|used|found|\w+_loss|loss_\w+)",
)
LOCAL_METHODS = frozenset({"any", "all", "max", "min", "sum", "mean"})
"""Methods by which a tensor of this rank is asked."""
FILLED = re.compile(
    r"(\w+_)?(buffer|cache|history|logs?|metrics|queue|records?|results?|stats|state)"
)
"""Names of what a rank fills as it goes: whether it holds something is asked of each rank."""
DECIDES = (ast.Call, ast.Compare, ast.BoolOp, ast.UnaryOp)


def is_local(test: ast.expr, function: Function, steps: int = 2) -> bool:
    """Whether a condition depends on data that only this rank knows."""
    if is_own_data(test, function):
        return True
    if isinstance(test, ast.BoolOp):
        return any(is_local(expression, function, steps) for expression in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = test.operand
        if isinstance(inner, ast.Name) and inner.id in function.parameters:
            return inner.id not in function.defaults
        if isinstance(inner, ast.Attribute):
            return FILLED.fullmatch(inner.attr.strip("_")) is not None
        return is_local(inner, function, steps)
    if isinstance(test, ast.Call) and called_name(test) == "isinstance":
        return False
    if is_empty(test, function):
        return True
    for call in parts(ast.Call, test):
        of_tensor = isinstance(call.func, ast.Attribute) and call.func.attr in LOCAL_METHODS
        full = called_name(call) == "full" and not call.args  # a buffer, not torch.full
        if of_tensor or full or called_name(call) in LOCAL_CALLS or _of_each_own(call):
            return True
        if called_name(call) == "len" and _own_length(call.args[0], function, texts=False):
            return True
        summed = called_name(call) in ("sum", "any", "all") and isinstance(call.func, ast.Name)
        if summed and _collected(ast.unparse(call.args[0]), function):
            return True
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)):
        return any(
            LOCAL_NAMES.fullmatch(name) or FILLED.fullmatch(name)
            for name in last_names(*test.comparators)
        )
    named = test.left if isinstance(test, ast.Compare) else test
    if isinstance(named, ast.Name) and steps:  # what decided its values
        values = function.values_of(named.id)
        tests = [value.test if isinstance(value, ast.IfExp) else value for value in values]
        asked = [value for value in tests if isinstance(value, DECIDES)]
        if asked and all(is_local(value, function, steps - 1) for value in asked):
            return True
        if any(isinstance(value, ast.Constant) for value in values) and any(
            is_own_data(node.test, function)
            for node in function.each(ast.If)
            for assign in parts(ast.Assign, *node.body, into=False)
            if [named.id] in map(names_of, assign.targets)
        ):
            return True
        if _set_on_the_way(named, function):
            return True
    if isinstance(test, ast.Compare):  # not ``pref_loss == "sigmoid"``
        other = getattr(test.comparators[0], "value", ...)
        compared = not isinstance(other, str)
        if (other is None or isinstance(other, bool)) and ENDS_IN_DATA.fullmatch(tail(test.left)):
            return True
    else:
        compared = isinstance(test, ast.Name)
    return compared and any(map(LOCAL_NAMES.fullmatch, last_names(test)))


NONE_OF = ("len", "numel", "size", "sum", "any", "count_nonzero")
PLAIN = re.compile(r"int|str|bool|float|\w*Config\w*|torch\.(dtype|device)")
"""Annotations of parameters that all ranks get alike."""


def is_empty(test: ast.expr, function: Function) -> bool:
    """Whether a condition asks if what was made of a function's arguments holds anything."""
    if isinstance(test, ast.BoolOp):
        return any(is_empty(value, function) for value in test.values)
    asked = test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        asked = test.operand
        if isinstance(asked, ast.Name):
            made = [*map(called_name, function.values_of(asked.id))]
            return bool(made) and set(made) <= {"get", "pop"} and _of_arguments(asked, function)
    elif isinstance(test, ast.Compare):
        if getattr(test.comparators[0], "value", None) != 0:
            return False
        asked = test.left
    elif called_name(test) not in ("any", "numel"):
        return False
    if isinstance(asked, ast.Subscript) and ast.unparse(asked).endswith(".shape[0]"):
        held = asked.value
    elif isinstance(asked, ast.Call) and called_name(asked) in NONE_OF:
        held = asked.func if isinstance(asked.func, ast.Attribute) else asked.args[0]
    else:
        return False
    path = names_of(held)
    return bool(path) and path[0] != "self" and _of_arguments(held, function)


def _of_arguments(value: ast.expr, function: Function, steps: int = 4) -> bool:
    """Whether a value is made of arguments that differ from call to call: of data."""
    for name in parts(ast.Name, value):
        if OPTIONS.fullmatch(name.id.rpartition("_")[2]):
            continue
        if name.id in function.parameters and name.id not in function.defaults:
            given = function.annotations.get(name.id)
            if given is None or not PLAIN.fullmatch(ast.unparse(given)):
                return True
        elif steps and any(
            _of_arguments(made, function, steps - 1) for made in function.sources_of(name.id)
        ):
            return True
    return False


def _set_on_the_way(name: ast.Name, function: Function) -> bool:
    """Whether a name is a constant until a loop or `try` above sets it, if that gets so far."""
    values = function.values_of(name.id)
    stored = [
        node.lineno
        for node in function.each(ast.Name)
        if node.id == name.id and isinstance(node.ctx, ast.Store)
    ]
    ways: list[ast.For | ast.Try] = function.each(ast.For, ast.Try)
    for way in ways:
        last = way.body[-1].end_lineno or 0
        outside = [value for value in values if not way.lineno <= value.lineno <= last]
        if (
            last < name.lineno
            and any(way.lineno <= line <= last for line in stored)
            and any(value.lineno < way.lineno for value in outside)
            and all(map(_is_constant, outside))
            and not any(parts(ast.Import, way) or parts(ast.ImportFrom, way))
            and not (isinstance(way, ast.For) and _same_for_all(way.iter))
        ):
            return True
    return False


def _is_constant(value: ast.expr) -> bool:
    return isinstance(value.operand if isinstance(value, ast.UnaryOp) else value, ast.Constant)


def _same_for_all(over: ast.expr) -> bool:
    """Whether all ranks go through as much: a `range`, or parts of a model."""
    called = re.fullmatch(
        r"range|zip|(named_)?(modules|parameters|buffers|children)", called_name(over)
    )
    return called is not None or any(map(SAME_KEYS.fullmatch, last_names(over)))


def _of_each_own(call: ast.Call) -> bool:
    """Whether a call is ``all(... for item in state)`` over what this rank holds."""
    if not isinstance(call.func, ast.Name) or call.func.id not in ("all", "any"):
        return False
    over = [each.iter for made in parts(ast.GeneratorExp, *call.args) for each in made.generators]
    names = last_names(*over)
    return any(LOCAL_NAMES.fullmatch(name) or FILLED.fullmatch(name) for name in names)


NO_COUNT = (
    r"(?!\w*_(i|idx|index|indices|ids?|no|num|number|counts?|sizes?|steps?|shapes?|names?|keys?|fns?"
    r"|sampler|loaders?|weights?|scales?|types?|dims?|args|config|interval|freq)(_|\b))(_\w+)?"
)
"""Excludes names such as ``batch_size``: counts and descriptions are the same on all ranks."""
NO_OPTION = (
    r"(?!_*(total|limit|global|max|min|return|use|with|compute|has|is|no|log|should|skip|print|report"
    r"|only|want|need|do|enable|include|show)_)"
)
"""Excludes names such as ``max_loss`` and ``use_grad``: limits and switches."""
OWN_DATA = re.compile(
    NO_OPTION + r"(?!num_|n_)(\w+_)?"
    r"(batch(es)?|loss(es)?|samples?|preds?|predictions|logits|grads?|gradients?|boxes)" + NO_COUNT
)
ENDS_IN_DATA = re.compile(NO_OPTION + r"\w+_(batch(es)?|samples?|preds?|predictions|boxes)")
OWN_NUMBER = re.compile(NO_OPTION + r"(\w+_)?(loss|grad(ient)?_norm)" + NO_COUNT)
"""A number that a rank computes from its own data."""


CLOCKS = re.compile(r"(time\.)?(time|monotonic|perf_counter)(_ns)?|(\w+\.)*datetime\.(utc)?now")


def _reads_clock(test: ast.expr, function: Function, steps: int = 2) -> bool:
    """Whether a condition reads this rank's own clock, directly or through a variable."""
    for node in walk(test):
        if isinstance(node, ast.Call) and CLOCKS.fullmatch(".".join(names_of(node.func))):
            return True
        if isinstance(node, ast.Name) and steps:
            values = function.values_of(node.id)
            if values and all(
                _reads_clock(expression, function, steps - 1) for expression in values
            ):
                return True
    return False


def is_own_data(test: ast.expr, function: Function, steps: int = 2) -> bool:
    """Whether a condition clearly depends on something that only this rank has.

    That is its data (empty, not finite or too large), its clock, or a variable that holds these.
    """
    flag = test.operand if isinstance(test, ast.UnaryOp) else test
    if isinstance(flag, ast.Name) and steps and (values := function.values_of(flag.id)):
        return all(is_own_data(value, function, steps - 1) for value in values)
    numbers = {constant.value for constant in parts(ast.Constant, test)}
    if any(
        isinstance(compare.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        and _reads_clock(compare, function)
        for compare in parts(ast.Compare, test)
    ):
        return True
    for node in walk(test):
        if called_name(node) == "numel" and numbers - {0}:
            continue  # a shape that all ranks have
        if called_name(node) in ("numel", "isnan", "isinf", "isfinite"):
            # a caller may have gathered its argument
            return all(
                name not in function.parameters or OWN_DATA.fullmatch(name)
                for name in last_names(node)
            )
        number: object = 0
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            left = node.operand  # ``not len(batch)``
        elif isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
            left, number = node.left, node.comparators[0].value
        else:
            continue
        first = isinstance(left, ast.Subscript) and ast.unparse(left).endswith(".shape[0]")
        sized = first or called_name(left) in ("len", "item", "size")
        if (first or called_name(left) == "size") and number != 0:
            continue  # a shape that all ranks have
        names = last_names(left) if sized or isinstance(left, ast.Name) else set()
        own = OWN_DATA if sized else OWN_NUMBER
        if called_name(left) == "len" and any("grad" in name for name in names):
            continue  # number of parameters of a model
        if isinstance(number, (int, float)) and any(map(own.fullmatch, names)):
            return True
    return False


def _sure(event: Event) -> Severity:
    return "error" if event.sure and not (event.group or event.conditional) else "note"


ROLES = re.compile(
    r"(serve|run|start|main|launch|listen|loop|deploy|train|play|fit|work)(er|_\w+)?"
    r"|\w+_(server|worker|loop|player|trainer)"
)


def _has_a_role(parting: Parting) -> bool:
    """Whether the side without the collective does work of its own meanwhile."""
    node = parting.under
    if isinstance(node, ast.IfExp):
        return False
    if parting.leaves is None and parting.side is False:
        # the one rank does something else that may reach the same collective, but no backward
        return not any("backward" in event.name for event in parting.made)
    stays = parting.leaves or parting.node
    in_body = any(child is stays for child in walk(*node.body))
    other = node.body if in_body is (parting.leaves is not None) else node.orelse
    loops = [loop for loop in other if isinstance(loop, (ast.While, ast.For))]
    if parting.leaves is not None and parting.leaves not in other:  # nested: out of which loop?
        loops = [loop for loop in loops if parting.leaves in walk(loop)]
    return bool(loops) or any(
        ROLES.fullmatch(called_name(call)) and (call.args or call.keywords)
        for call in parts(ast.Call, *other)
    )


MAKES = re.compile(
    r"_*(save|write|dump|mk|make|touch|build|create|download|prepare|convert|generate|preprocess"
    r"|extract|copy|move|rename|replace|remove|rm|unlink|delete)"
)
"""Names of calls that create or remove a file or folder."""


def _made_meanwhile(parting: Parting, event: Event, code: Code) -> bool:
    """Whether one rank creates what a test looks for, perhaps before the others look.

    ``if not exists(path)``, and below it ``if rank == 0: build(path)`` before the collective.
    """
    looked_for = {
        ast.unparse(part)
        for call in parts(ast.Call, parting.under.test)
        if called_name(call) in FILE_TESTS
        for part in (call.args or [getattr(call.func, "value", call.func)])
    }
    return any(
        parting.under.lineno < node.lineno < event.node.lineno
        and code.reach.tests.of(node.test, code.function).side is True
        and any(
            ast.unparse(given) in looked_for
            for call in parts(ast.Call, *node.body)
            if MAKES.match(called_name(call) or getattr(call.func, "attr", ""))
            for given in (*call.args, getattr(call.func, "value", call.func))
        )
        for node in (code.function.each(ast.If) if looked_for else ())
    )


WHO = {True: "one rank", False: "all ranks but one", None: "some ranks"}


GROUP_MAKERS = frozenset({"new_group", "new_subgroups", "init_device_mesh", "split_group"})


def _parted(code: Code, *, by_rank: bool, leaves: bool, makers: bool = False) -> Iterator[Found]:
    """Yield findings where one side of a test reaches a collective and the other does not.

    Args:
        code: The function.
        by_rank: Whether the test depends on the rank, or on the rank's own data.
        leaves: Whether the other side leaves before the collective, or skips it.
        makers: Whether the collective creates a process group.
    """
    if not code.partings:
        return
    around = code.function.around  # the others may reach it there before they call this function
    met_outside = {event.name for event in code.reach.function(around)} if around else set()
    for parting in code.partings:
        if parting.asked.asks is not by_rank or (parting.leaves is not None) is not leaves:
            continue
        event = min(
            parting.made,
            key=lambda event: (not event.sure, event.conditional, event.group, len(event.path)),
        )
        if by_rank and not leaves and (event.name in GROUP_MAKERS) is not makers:
            continue
        who, single = WHO[parting.side], parting.side is True
        called, test = f"{event.told}", f"`{parting.test}`"
        line = event.node.lineno
        if by_rank and leaves:
            word = type(parting.leaves).__name__.lower()
            come = f"{who} {'comes' if single else 'come'}"
            message = f"{test} leads to this {word} before {called} in line {line}, to which {come}"
        elif by_rank:
            others = "that one never does" if parting.side is False else "the others never do"
            message = f"{who} {'calls' if single else 'call'} {called} under {test}, and {others}"
        elif leaves:
            message = (
                f"{test}, which each rank finds for itself, leads past {called} in line {line}"
            )
        else:
            message = f"{called} is called under {test}, which each rank finds for itself"
        if by_rank:
            closed = not (parting.side is None or parting.asked.grouped or _has_a_role(parting))
        else:
            closed = is_own_data(parting.under.test, code.function) or _made_meanwhile(
                parting, event, code
            )
        severity = _sure(event) if closed and event.name not in met_outside else "note"
        yield Found(
            parting.leaves or parting.node, message, severity, event, (parting.under.lineno,)
        )


def _first(
    made: list[Event], message: str, *lines: int, at: ast.expr | None = None, closed: bool = True
) -> Iterator[Found]:
    """Yield a finding on the first of some collectives; its name replaces ``{}``."""
    for event in made[:1]:
        severity = _sure(event) if closed else "note"
        yield Found(at or event.node, message.replace("{}", event.told, 1), severity, event, lines)


# HC1: a rank alone reaches a collective


@rule("HC101", "rank_diverged", "move what {function} calls there", f"{LIGHTNING}/16541")
def collective_under_rank_test(code: Code) -> Iterator[Found]:
    """One side of a test of the rank makes a collective that the other side does not.

    Why it hangs: a collective ends only when every rank of its group has called it. The rank that
    passes the test waits there; the others go on, and wait in their next collective.

    Example:
        if trainer.is_global_zero:
            scores = self.all_gather(scores)
            print(scores.mean())

    Instead:
        scores = self.all_gather(scores)
        if trainer.is_global_zero:
            print(scores.mean())
    """
    yield from _parted(code, by_rank=True, leaves=False)


WRAPS_FOR_ONE = re.compile(r"main|rank|master|primary|on_process")


@rule("HC102", "rank_diverged", "move what {function} calls there", f"{LIGHTNING}/8394")
def collective_in_rank_zero_function(code: Code) -> Iterator[Found]:
    """A function that a decorator lets run on one rank only makes a collective.

    Why it hangs: `rank_zero_only`, `on_main_process` and their like return at once on all other
    ranks, so these never come to the collective that the one rank waits in. A function that is
    handed to such a wrapper, `run_on_main(save)`, counts as well.

    Example:
        @rank_zero_only
        def on_validation_end(self, trainer, module):
            trainer.save_checkpoint("last.ckpt")

    Instead:
        def on_validation_end(self, trainer, module):
            trainer.save_checkpoint("last.ckpt")  # all ranks come, rank 0 writes
    """
    for call in code.function.each(ast.Call):
        if not WRAPS_FOR_ONE.search(called_name(call)) or not call.args:
            continue
        for handed in callee(call.args[0], code.function).functions:
            if not code.reach.limits(call, code.function):
                continue
            own = [event for event in code.reach.function(handed) if event.only is None]
            wrapper = ast.unparse(call.func)
            message = f"one rank calls {{}} through `{wrapper}`, and the others never do"
            yield from _first(own, message, at=call)
    decorator = code.reach.one_rank_decorator(code.function)
    if not decorator:
        return
    made = [
        event for event in code.reach.block(code.function.body, code.function) if event.only is None
    ]
    made.sort(key=lambda item: (not item.sure, item.group))
    message = f"one rank calls {{}} under `@{decorator}`, and the others never do"
    lines = code.function.decorators[0].lineno, getattr(code.function.node, "lineno", 0)
    yield from _first(made, message, *lines)


STORE_ANSWERS = r"store\w*\.(set|multi_set|add|compare_set|append)"
ANSWERS = {"recv": r"i?send|P2POp|send_object_list", "recv_object_list": r"i?send|send_object_list"}


@rule(
    "HC103",
    "rank_diverged",
    "move what {function} calls there",
    f"{DIST_DOCS}#point-to-point-communication",
)
def receive_without_send(code: Code) -> Iterator[Found]:
    """A rank waits for a message, or for a key of the store, that nothing in the program sends.

    Why it hangs: a receive waits for its send, and `store.wait` for a `store.set` of that key.

    Example:
        if dist.get_rank() == 0:
            dist.recv(statistics, src=1)

    Instead:
        if dist.get_rank() == 0:
            dist.recv(statistics, src=1)
        elif dist.get_rank() == 1:
            dist.send(statistics, dst=0)
    """
    module = code.function.module
    if not module.has(b"init_process_group"):
        return  # a part of a program: another file may send
    for call in code.function.each(ast.Call):
        name, path = called_name(call), names_of(call.func)
        of_store = name == "wait" and len(path) > 1 and "store" in path[-2].lower()
        answer = STORE_ANSWERS if of_store else ANSWERS.get(name, "")
        called = callee(call.func, code.function).path if answer else ""
        if not answer or not (of_store or called.startswith("torch.distributed")):
            continue
        used = (names_of(node) for each in module.with_imported() for node in walk(each.tree))
        if not any(re.fullmatch(rf"(.*\.)?({answer})", ".".join(path)) for path in used):
            when_run = {called_name(node) for node in module.main.nodes}
            whole = module.has(b"__main__") or "init_process_group" in when_run
            message = f"nothing in this program answers {'.'.join(path)}"
            # another program can also connect to a store and set the key
            yield Found(call, message, "error" if whole and not of_store else "note")


@rule(
    "HC105",
    "collective_mismatch",
    "Let even ranks send first and odd ranks receive first, or post both: dist.batch_isend_irecv.",
    f"{DIST_DOCS}#torch.distributed.batch_isend_irecv",
)
def all_receive_first(code: Code) -> Iterator[Found]:
    """Every rank receives from a neighbour before it sends to the next.

    Why it hangs: in a ring all wait for a message that the neighbour would send afterwards.

    Example:
        dist.recv(received, src=(rank - 1) % size)
        dist.send(mine, dst=(rank + 1) % size)

    Instead:
        receive = dist.P2POp(dist.irecv, received, (rank - 1) % size)
        send = dist.P2POp(dist.isend, mine, (rank + 1) % size)
        requests = dist.batch_isend_irecv([receive, send])
    """
    if not code.function.module.has(b"%"):
        return
    for block in code.blocks:
        alone = (statement.value for statement in block if isinstance(statement, ast.Expr))
        calls = (call for call in alone if isinstance(call, ast.Call))
        paths = [(call, callee(call.func, code.function).path) for call in calls]
        both = ["torch.distributed.recv", "torch.distributed.send"]
        messages = [(call, path) for call, path in paths if path in both]
        if [path for _, path in messages[:2]] == both and "%" in ast.unparse(messages[0][0]):
            message = "every rank waits here for a message before it sends its own"
            yield Found(messages[0][0], message, "error")


@rule("HC104", "rank_diverged", "where the condition depends on data", f"{LIGHTNING}/5604")
def collective_under_local_test(code: Code) -> Iterator[Found]:
    """A collective stands under a test of what only this rank knows: its loss, batch or clock.

    Why it hangs: on the rank whose data differ the test comes out differently. A part of a model
    that ranks share, used only where a batch has images or boxes, is a note. So is a loss that is a
    constant where a rank has no data.

    Example:
        if loss.item() > limit:
            dist.all_reduce(loss)

    Instead:
        too_high = (loss > limit).float()
        dist.all_reduce(too_high, op=dist.ReduceOp.MAX)
        if too_high.item():
            dist.all_reduce(loss)
    """
    yield from _parted(code, by_rank=False, leaves=False)
    yield from _part_of_a_model(code)
    yield from _loss_off_the_graph(code)
    kinds: list[ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp] = code.function.each(
        ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
    )
    for made in kinds:
        tests = [test for each in made.generators for test in each.ifs]
        own = next((test for test in tests if _holds_something(test, code)), None)
        if own is not None:
            events = [*code.reach.expression(made, code.function)]
            message = f"{{}} is called where `{ast.unparse(own)}`, which each rank finds for itself"
            yield from _first(events, message, at=made, closed=False)


def _holds_something(test: ast.expr, code: Code) -> bool:
    return isinstance(test, ast.Name) or code.is_local(test, code.function)


def _loss_off_the_graph(code: Code) -> Iterator[Found]:
    """Yield a loss that is a constant where a rank has no data: its backward reduces nothing."""
    choices: list[ast.If | ast.IfExp] = code.function.each(ast.If, ast.IfExp)
    returned = {each.value for each in code.function.each(ast.Return)}
    under = {call: node for node in choices for call in parts(ast.Call, node, into=False)}
    for call, node in under.items():
        if called_name(call) not in ("tensor", "zeros") or not all(map(_is_constant, call.args)):
            continue
        wants = any(word.arg == "requires_grad" for word in call.keywords)
        asked = {name.id for name in parts(ast.Name, node.test)} - {"self", "torch"}
        # ``(loss * mask).sum() if mask.any() else torch.tensor(0.0)``
        other = node.body if isinstance(node, ast.IfExp) and call is node.orelse else None
        instead = last_names(other) if other and node in returned else set()
        own = (wants or asked & instead or _is_other_loss(call, node)) and code.is_local(
            node.test, code.function
        )
        if own and not last_names(node.test) & _shared_names(code.function):
            message = (
                f"`{ast.unparse(call)}` has no graph: under `{ast.unparse(node.test)}`, "
                "which each rank finds for itself, backward reduces no gradients"
            )
            yield Found(call, message, also=(node.lineno,))
            return


def _is_other_loss(constant: ast.Call, choice: ast.If | ast.IfExp) -> bool:
    """Whether one side of an `if` assigns a constant to the loss that the other computes."""
    if isinstance(choice, ast.IfExp):
        return False
    assigned = {node.value: node.targets for node in parts(ast.Assign, choice, into=False)}
    names = last_names(*assigned.pop(constant, ()))
    others = (targets for value, targets in assigned.items() if not _is_constant(value))
    return any("loss" in name for name in names) and any(names & last_names(*t) for t in others)


SHARES_A_MODEL = re.compile(
    rb"FullyShardedDataParallel|fully_shard|DistributedDataParallel|GatheredParameters"
)
DRAWS = ("random", "uniform", "randint", "randrange", "rand")
MODALITY = re.compile(r"(\w+_)?(pixel_values|images?|videos?|audios?|input_features)(_\w+)?")
"""Names of inputs that a rank's own batch may lack."""


def _part_of_a_model(code: Code) -> Iterator[Found]:
    """Yield tests under which one rank alone uses a part of a model that the ranks share."""
    function, owner = code.function, code.function.owner
    if owner is None or not any(kind.endswith("Module") for kind in owner.kinds):
        return
    if not function.module.project.has(SHARES_A_MODEL) or WITHOUT_LOSS.search(function.name):
        return
    branches: list[ast.If | ast.IfExp] = function.each(ast.If, ast.IfExp)
    for node in branches:
        given = isinstance(node.test, ast.Compare) and ast.unparse(node.test).endswith("not None")
        lacks = given and any(map(MODALITY.fullmatch, last_names(node.test)))
        drawn = any(called_name(call) in DRAWS for call in parts(ast.Call, node.test))
        own = is_own_data(node.test, function) or is_empty(node.test, function)
        if not (lacks or drawn or own or _asks_rank(node.test, code)):
            continue
        sides = [part if isinstance(part, list) else [part] for part in (node.body, node.orelse)]
        used, other = (
            _parts_used([*parts(ast.Call, *side, into=False)], function) for side in sides
        )
        if isinstance(node, ast.If) and (left := leaving(node.body)):
            other |= _parts_used(_passed_by(node, left, function), function)
        alone = [(name, used[name]) for name in used if name not in other]
        alone += [(name, other[name]) for name in other if name not in used]
        for name, call in alone[:1]:
            message = (
                f"`{name}` is used as `{ast.unparse(node.test)}` tells: if that differs, "
                "its weights are gathered, or its gradients reduced, on some ranks only"
            )
            yield Found(call, message, also=(node.lineno,))


def _passed_by(node: ast.If, left: ast.stmt, function: Function) -> list[ast.Call]:
    """Return the calls after an `if`, to the end of what a statement in it leaves."""
    loops: list[ast.For | ast.While] = function.each(ast.For, ast.While)
    around = [loop for loop in loops if loop.lineno < node.lineno <= (loop.end_lineno or 0)]
    last = function.node if isinstance(left, ast.Return) or not around else around[-1]
    calls = function.each(ast.Call)
    return [call for call in calls if (node.end_lineno or 0) < call.lineno <= span(last)[1]]


WITHOUT_LOSS = re.compile(
    r"[._](aug|simple)?_?(test|infer|predict|generate|sample|eval|decode"
    r"|recogni|search|beam)"
)
"""Methods that no backward follows."""
NO_WEIGHTS = re.compile(
    r"(\w+_)?(act\w*|loss\w*|criterion\w*|drop\w*|tokenizer|processor|transforms?|pool\w*|metrics?|log\w*"
    r"|fn|func\w*|callback|config)"
)
"""Names of attributes of a model that have no weights."""


def _parts_used(calls: list[ast.Call], function: Function, steps: int = 2) -> dict[str, ast.Call]:
    """Return the parts of a model that some calls use, directly or through its methods."""
    found: dict[str, ast.Call] = {}
    for call in calls:
        name = _part_of_self(call.func, function)
        method = function.owner.method(name) if function.owner else None
        if method is not None and steps and names_of(call.func) == ["self", name]:
            below = _parts_used(method.each(ast.Call), method, steps - 1)
            found |= {part: call for part in below if part not in found}
        elif name and method is None and not NO_WEIGHTS.fullmatch(name):
            found.setdefault(f"self.{name}", call)
    return found


def _part_of_self(called: ast.expr, function: Function, steps: int = 2) -> str:
    """Return `x` of `self.x`, of one of its items, or of a name for these; else empty."""
    while isinstance(called, ast.Subscript):
        called = called.value
    path = names_of(called)
    if path[:1] == ["self"] and len(path) == 2:
        return path[1]
    if len(path) != 1 or not steps:
        return ""
    loops: list[ast.For] = function.each(ast.For)
    values = [
        *function.values_of(path[0]),
        *(
            value
            for loop in loops
            if path[0] in last_names(loop.target)
            for value in (loop.iter, *getattr(loop.iter, "args", ()))
        ),
    ]
    return next(filter(None, (_part_of_self(value, function, steps - 1) for value in values)), "")


# HC2: a rank leaves before a collective


@rule("HC201", "rank_diverged", "{place}: rank {rank} left out", f"{LIGHTNING}/5604")
def leaves_under_rank_test(code: Code) -> Iterator[Found]:
    """A rank leaves a function or a loop before a collective that the others come to.

    Why it hangs: the others wait for it there. A `return` for all ranks but 0 is the usual one,
    with a barrier or a gather further down, often in what a function below calls. A `raise` is a
    note: launchers end the ranks that wait for one that failed, unless something catches the error.
    So is work of one rank that may fail before a collective of all.

    Example:
        def save(results):
            if rank != 0:
                return
            write(results)
            dist.barrier()

    Instead:
        def save(results):
            if rank == 0:
                write(results)
            dist.barrier()
    """
    yield from _parted(code, by_rank=True, leaves=True)
    for block, place, node in code.work_of_one:
        fails = None if leaving(node.body) else _failing(node.body, code)
        behind = code.made_after(block, place) if fails else []
        message = "if this fails, only one rank ends, and the others wait in {}"
        yield from _first(behind, message, node.lineno, at=fails, closed=False)


def _failing(block: list[ast.stmt], code: Code) -> ast.expr | None:
    """Return what raises an error in a block, or the call of a function of the file that does."""
    nodes = list(walk(*block, into=False))
    if any(isinstance(node, ast.Try) for node in nodes):
        return None  # it may tell the others
    for node in nodes:
        if isinstance(node, ast.Assert) and not _certain(node.test):
            return node.test
        if isinstance(node, ast.Raise) and node.exc is not None:
            return node.exc
        if isinstance(node, ast.Call) and any(
            called.each(ast.Raise) and called.module is code.function.module
            for called in callee(node.func, code.function).functions
        ):
            return node
    return None


def _certain(test: ast.expr) -> bool:
    """Whether an assertion only tells a type checker what is known."""
    return called_name(test) == "isinstance" or ast.unparse(test).endswith(" is not None")


@rule("HC202", "uneven_work", "give every rank as many batches", f"{TORCH}/44353")
def leaves_under_local_test(code: Code) -> Iterator[Found]:
    """A rank leaves before a collective because of its own data or clock: no samples, NaN.

    Why it hangs: the other ranks have samples, and wait for this one in the collective. In
    Lightning, a `training_step` that returns nothing leaves out the backward of the others.

    Example:
        for batch in loader:
            if len(batch) == 0:
                continue
            dist.all_reduce(count)

    Instead:
        for batch in loader:
            if len(batch) > 0:
                count += len(batch)
            dist.all_reduce(count)  # also with nothing to add
    """
    yield from _parted(code, by_rank=False, leaves=True)
    by_hand = code.function.module.has(b"automatic_optimization")
    if by_hand or not code.function.name.endswith(".training_step"):
        return
    for node in code.function.each(ast.If):
        left = leaving(node.body)
        nothing = isinstance(left, ast.Return) and ast.unparse(left) in ("return", "return None")
        if left is not None and nothing and is_local(node.test, code.function):
            test = ast.unparse(node.test)
            message = f"`{test}` leaves this rank without a loss, and the others wait in backward"
            yield Found(left, message, also=(node.lineno,))


@rule("HC203", "rank_diverged", "a batch that one rank must skip", f"{TORCH}/44353")
def except_goes_on(code: Code) -> Iterator[Found]:
    """An exception is caught, and the rank that met it goes on without a collective of the others.

    Why it hangs: an exception is one rank's: out of memory, a bad sample, a file that is not there.
    A collective that only the handler makes is a note.

    Example:
        for batch in loader:
            try:
                loss = model(batch)
            except MemoryError:
                continue
            dist.all_reduce(loss)

    Instead:
        for batch in loader:
            try:
                loss = model(batch)
            except MemoryError:
                loss = torch.zeros(())
            dist.all_reduce(loss)
    """
    for block in code.blocks if code.function.each(ast.Try) else ():
        for place, node in enumerate(block):
            if not isinstance(node, ast.Try):
                continue
            inside = code.made_in(node.body)
            first = code.made_in(node.body[:1])
            behind = code.made_in(block[place + 1 :])
            for handler in node.handlers:
                if not goes_on(handler.body):
                    continue
                raises = any(parts(ast.Raise, handler))  # for some errors
                made = code.made_in(handler.body)
                names = {event.name for event in made}
                leaves = leaving(handler.body)
                if leaves and code.function.module.has(JOINED):
                    continue  # the others' collectives are shadowed
                skipped = inside + (behind if leaves else [])
                missing = [event for event in skipped if event.name not in names]
                if not missing:
                    met = {event.name for event in (*inside, *code.made_in(node.orelse))}
                    alone = [event for event in made if event.name not in met]
                    message = "only a rank that caught this calls {}"
                    yield from _first(alone, message, handler.lineno, closed=False)
                    continue
                # the work before the collective fails, and this rank then skips an iteration
                own = isinstance(leaves, ast.Continue) or (not leaves and not first)
                own = own and _works(node.body, missing[0], code)
                caught = last_names(handler.type) if handler.type is not None else set()
                ends = any(called_name(call) == "next" for call in parts(ast.Call, *node.body))
                named = caught & (DATA_ERRORS | _raised_for_data(node.body, code.function))
                named -= set() if ends else {"StopIteration"}
                yield Found(
                    handler.body[-1],
                    f"a rank that caught this goes on without {missing[0].told} in line "
                    f"{missing[0].node.lineno}",
                    _sure(missing[0]) if own and named and not raises else "note",
                    missing[0],
                    (handler.lineno,),
                )


def _works(block: list[ast.stmt], event: Event, code: Code) -> bool:
    """Whether a block does something before a collective that may fail on one rank only.

    Creating tensors for the collective does not count: if that fails, it fails on all ranks.
    """
    calls = parts(ast.Call, *block, into=False)
    before = [call for call in calls if call.lineno < event.node.lineno] or code.calls_of(block)
    return any(
        call is not event.node
        and not callee(call.func, code.function).path.startswith("torch.")
        and not re.match(r"(cuda|to|item|cpu)$|init|setup", called_name(call))
        for call in before
    )


def _raised_for_data(block: list[ast.stmt], function: Function) -> set[str]:
    """Return errors that a block raises itself if a rank's own data are unusable."""
    tests = (node for node in parts(ast.If, *block) if is_own_data(node.test, function))
    raised = (node.exc for test in tests for node in parts(ast.Raise, *test.body))
    return last_names(*(error for error in raised if error is not None))


DATA_ERRORS = frozenset({"RuntimeError", "MemoryError", "OutOfMemoryError", "StopIteration"})
"""Errors that a rank raises because of its own batch."""


@rule("HC204", "uneven_work", "where one rank decides to stop", f"{LIGHTNING}/20806")
def leaves_on_signal(code: Code) -> Iterator[Found]:
    """A loop of collectives ends on a flag that a signal's handler sets.

    Why it hangs: ranks hear a signal at different moments, or only one does. It leaves the loop a
    step before the others.

    Example:
        signal.signal(signal.SIGTERM, remember)  # it sets asked_to_stop
        for gradient in gradients():
            if asked_to_stop:
                break
            dist.all_reduce(gradient)

        def remember(*_):
            global asked_to_stop
            asked_to_stop = True

    Instead:
        for gradient in gradients():
            stop = torch.tensor(float(asked_to_stop))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item():
                break
            dist.all_reduce(gradient)
    """
    flags = _flags_of_handlers(code) if code.makes_any else set()
    for loop in code.function.nodes if flags else ():
        if not isinstance(loop, LOOPS):
            continue
        leave = [
            statement
            for statement in loop.body
            if isinstance(statement, ast.If) and leaving(statement.body)
        ]
        for node in leave:
            for event in code.made_in(loop.body)[:1] if last_names(node.test) & flags else ():
                yield Found(
                    node.body[-1],
                    f"`{ast.unparse(node.test)}` was set by a signal, which not all ranks hear "
                    f"before {event.shown} in line {event.node.lineno}",
                    _sure(event),
                    event,
                    (node.lineno,),
                )


def _flags_of_handlers(code: Code) -> set[str]:
    module, known = code.function.module, code.reach.flags_of_handlers
    if module not in known:
        functions = module.all_functions if module.has(b"signal.signal") else []
        known[module] = {
            name
            for function in functions
            for handler, _ in _handlers(Code(function, code.reach), "signal")
            if not _ends_the_process(handler)
            for node in parts(ast.Assign, handler.node)
            for target in node.targets
            for name in names_of(target)[-1:]
        }
    return known[module]


def _ends_the_process(handler: Function) -> bool:
    """Whether a handler, or a function it calls, ends the process soon."""
    calls = handler.each(ast.Call)
    called = (function for call in calls for function in callee(call.func, handler).functions)
    return any("_exit" in last_names(*function.body) for function in (handler, *called))


STOP = re.compile(r"_?(pl_)?trainer\.should_stop|control\.should_(training|epoch)_stop")
"""Flags that Lightning and transformers read on each rank separately."""


@rule("HC205", "uneven_work", "where one rank decides to stop", f"{LIGHTNING}/5750")
def stops_the_trainer_on_one_rank(code: Code) -> Iterator[Found]:
    """One rank tells the trainer to stop: `should_stop`, or -1 from `on_train_batch_start`.

    Why it hangs: the trainer ends the epoch on that rank, and the others go on with their batches.
    A test of a rank's own loss or clock is a note.
    In transformers it is `control.should_training_stop`, or `control.should_epoch_stop`.

    Example:
        if self.global_rank == 0 and self.is_converged():
            self.trainer.should_stop = True

    Instead:
        stop = self.global_rank == 0 and self.is_converged()
        self.trainer.should_stop = self.trainer.strategy.reduce_boolean_decision(stop, all=False)
    """
    hook = code.function.name.rpartition(".")[2] == "on_train_batch_start"
    if not hook and not code.function.module.has(b"should_"):
        return
    if any(
        AGREES.search(called_name(call)) and "should_stop" in last_names(call)
        for call in code.function.each(ast.Call)
    ):
        return
    tests = code.reach.tests
    branches: list[tuple[list[ast.stmt], ast.expr, Severity]] = [
        (node.body, node.test, "error")
        for node in code.function.each(ast.If)
        if tests.of(node.test, code.function).side is not None
    ]
    branches += [
        (node.body, node.test, "note")
        for node in code.function.each(ast.If)
        if is_own_data(node.test, code.function)
    ]
    if decorator := code.reach.one_rank_decorator(code.function):
        branches.append((code.function.body, code.function.decorators[0], "error"))
    for block, test, severity in branches:
        for node in parts(ast.stmt, *block, into=False):
            flag = isinstance(node, ast.Assign) and any(
                STOP.fullmatch(".".join(names_of(target)[-2:])) for target in node.targets
            )
            returns = hook and isinstance(node, ast.Return) and ast.unparse(node) == "return -1"
            if flag or returns:
                passes = f"@{decorator}" if block is code.function.body else ast.unparse(test)
                message = f"only a rank that passes `{passes}` ends its epoch here"
                yield Found(node, message, severity, also=(test.lineno,))


# HC3: lengths and shapes that depend on a rank's data

JOINED = re.compile(rb"\bwith (.*\bJoin|[\w.]+\.join)\(|= *[\w.]*model[\w.]*\.join\b(?!\()")


@rule("HC301", "uneven_work", "give every rank as many batches", f"{LIGHTNING}/9851")
def count_depends_on_rank(code: Code) -> Iterator[Found]:
    """A number of steps, samples or tokens is another on one rank than on the others.

    Why it hangs: the rank with fewer leaves the loop, and the others wait for it in the next step.
    A loop over a rank's own batch, share of files, stream, or the keys of a dict is a note.

    Example:
        steps = 70 if rank == 0 else 100
        for _ in range(steps):
            train_step()

    Instead:
        for _ in range(70):
            train_step()
    """
    if code.function.module.has(JOINED):
        return  # ranks that have finished shadow the collectives of the others
    loops: list[ast.For | ast.AsyncFor | ast.While] = code.function.each(
        ast.For, ast.AsyncFor, ast.While
    )
    for loop in loops:
        over = loop.test if isinstance(loop, ast.While) else loop.iter
        by_rank = _length_by_rank(over, code)
        loops_while = isinstance(loop, ast.While)
        why = "has another length on each rank"
        why = why if by_rank else _why_uneven(over, code, loops_while=loops_while)
        if not why and (_uneven_batches(loop, code) or _uneven_evaluation(loop, code)):
            why = "may be shorter on one rank"
        if not why:
            continue
        made = code.made_in(loop.body)
        if not (made or by_rank):
            events = code.reach.block(loop.body, code.function)
            made = [event for event in events if event.only is None]
        messages = [call for call in code.calls_of(loop.body) if called_name(call) in ANSWERS]
        if made or (messages and by_rank):
            what = made[0].told if made else "a receive"
            severity = _sure(made[0]) if made else "error"
            yield Found(
                over,
                f"`{ast.unparse(over)}` {why}, and each pass calls {what}",
                severity if by_rank else "note",
                made[0] if made else None,
            )
    for choice in code.function.each(ast.IfExp):
        values = [_whole_number(expression) for expression in (choice.body, choice.orelse)]
        differ = None not in values and values[0] != values[1]
        if differ and min(v or 0 for v in values) > 1 and _asks_rank(choice.test, code):
            counts = any(map(COUNT.fullmatch, _goes_to(choice, code)))
            message = f"`{ast.unparse(choice)}` differs between the ranks"
            yield Found(choice, message, "error" if counts else "note")
    made_or_cut: list[ast.Call | ast.Subscript] = code.function.each(ast.Call, ast.Subscript)
    for node in made_or_cut:
        if _sized_by_rank(node, code):
            differs = f"`{ast.unparse(node)}` may have another length on each rank"
            yield Found(node, differs, "note")


OF_BATCH = re.compile(
    r"(\w+_)?(batch|samples|inputs?|outputs?|preds|predictions|logits|images|prompts|tokens|labels"
    r"|targets|boxes|sequences|features|queries|responses)"
)
SAME_KEYS = re.compile(
    r"(\w+_)?(\w*loaders?|(data)?sets?|models?|modules?|groups?|optimizers?|schedulers?|state(_dict)?"
    r"|param(eter)?s?|config|cfg|args|kwargs|\w*_dim|mesh\w*)"
)
"""Names of dicts that all ranks build alike."""
WRAPPERS = ("sorted", "list", "tuple", "enumerate", "tqdm", "reversed")


def _gone_over(over: ast.expr) -> ast.expr:
    """Return what a loop goes over, without ``enumerate`` and the like."""
    while isinstance(over, ast.Call) and called_name(over) in WRAPPERS and over.args:
        over = over.args[0]
    return over


def _why_uneven(over: ast.expr, code: Code, *, loops_while: bool) -> str:
    """Return why a loop may make more passes on one rank than on another; else empty."""
    if isinstance(over, (ast.Compare, ast.BoolOp, ast.UnaryOp)) or loops_while:
        names = last_names(over)
        names |= last_names(*(value for name in names for value in code.function.values_of(name)))
        own = code.is_local(over, code.function) and not names & _shared_names(code.function)
        return "is found by each rank for itself" if own else ""
    sorts, over = called_name(over) == "sorted", _gone_over(over)
    known = code.function.values_of(tail(over))
    if any(_every_nth_by_rank(value, code) for value in (over, *known)):
        return "is shorter on some ranks if its parts are not equal"
    if known and all(map(_is_empty_dict, known)):
        return "has the keys that each rank has put there"
    if not isinstance(over, ast.Call):
        return ""
    if called_name(over) in ("items", "keys", "values") and isinstance(over.func, ast.Attribute):
        known = code.function.values_of(tail(over.func.value))
        literal = known and all(isinstance(value, ast.Dict) and value.keys for value in known)
        alike = literal or SAME_KEYS.fullmatch(tail(over.func.value))
        made = isinstance(over.func.value, ast.Call) and (sorts or not over.func.value.args)
        return "" if alike or made else "has the keys that each rank has put there"
    if called_name(over) != "range":
        return ""
    values = [
        value for given in over.args for value in (given, *code.function.values_of(tail(given)))
    ]
    sizes = (
        node
        for node in walk(*values)
        if called_name(node) in ("len", "size", "numel")
        or (isinstance(node, ast.Attribute) and node.attr == "shape")
    )
    if any(any(map(OF_BATCH.fullmatch, last_names(node))) for node in sizes):
        return "goes by the size of each rank's own batch"
    numbers = parts(ast.Name, *over.args)
    chance = any(_by_chance(number.id, code.function) for number in numbers)
    return "goes by random numbers of each rank" if chance else ""


def _by_chance(name: str, function: Function) -> bool:
    """Whether a number is drawn at random, or changed in a branch or loop that chance decides."""
    branches: list[ast.While | ast.If] = function.each(ast.While, ast.If)
    tests = [
        node.test
        for node in branches
        if any(names_of(changed.target) == [name] for changed in parts(ast.AugAssign, *node.body))
    ]
    values = function.values_of(name)
    if _shared_names(function) & {name, *last_names(*values)}:
        return False
    drawn = parts(ast.Call, *tests, *values)
    if any(called_name(call) in DRAWS for call in drawn):
        return True
    return function.around is not None and _by_chance(name, function.around)


def _every_nth_by_rank(value: ast.expr, code: Code) -> bool:
    """Whether a value is each rank's share: ``files[rank::size]``, or ``islice`` of the kind."""
    if called_name(value) == "islice" and isinstance(value, ast.Call) and len(value.args) == 4:
        return _asks_rank(value.args[1], code)
    if called_name(value) == "shard" and isinstance(value, ast.Call):
        return any(_asks_rank(given, code) for given in value.args[1:2])
    cut = value.slice if isinstance(value, ast.Subscript) else None
    return (
        isinstance(cut, ast.Slice)
        and None not in (cut.lower, cut.step)
        and cut.upper is None
        and cut.lower is not None
        and _asks_rank(cut.lower, code)
    )


EVENS = re.compile(r"pad|drop|trunc|(?<![a-z])even|repeat|cycle|//|%|min\(|total_size|ceil")


def _cares_for_lengths(function: Function) -> bool:
    """Whether a function cuts or fills up what it shares out, so that all ranks get as much."""
    first, last = span(function.node)
    lines = (function.module.line(number) for number in range(first, last + 1))
    return any(map(EVENS.search, lines))


def _is_empty_dict(value: ast.expr) -> bool:
    by_call = called_name(value) in ("dict", "defaultdict", "Counter")
    return by_call or (isinstance(value, ast.Dict) and not value.keys)


STREAMS = re.compile(rb"IterableDataset|webdataset|[sS]hard(ed|s)?\b|[iI]terator|[gG]enerator\b")
EVENED = re.compile(
    rb"Distributed(Batch|LengthGrouped)?Sampler|\bJoin\b|even_batches|accelerat|horovod"
)
EVENED_THERE = re.compile(
    rb"[iI]nfinite|cycle\(|islice|\w*model\w*\.join\(|drop_last|max_(steps|it)"
)
"""Shows that a program, or the loop's own file, cares that all ranks have as many batches."""


def _shared_names(function: Function) -> set[str]:
    """Return names in what a function reduces, gathers or broadcasts."""
    shared = (call for call in function.each(ast.Call) if AGREES.search(called_name(call)))
    return last_names(*(given for call in shared for given in call.args)) - {"self"}


def _uneven_batches(loop: ast.For | ast.AsyncFor | ast.While, code: Code) -> bool:
    """Whether a loop makes a step of DDP for each part of a stream, as many as the rank has."""
    if isinstance(loop, ast.While) or called_name(loop.iter) in ("range", "sorted"):
        return False
    if not any("DistributedDataParallel" in event.name for event in code.made_in(loop.body)):
        return False
    ends = (node for node in parts(ast.If, *loop.body) if isinstance(leaving(node.body), ast.Break))
    if any(_shared_names(code.function) & last_names(node.test) for node in ends):
        return False  # all ranks stop with the first that has no more
    modules = code.function.module.with_imported()
    if any(module.has(EVENED) for module in modules) or modules[0].has(EVENED_THERE):
        return False
    return any(module.has(STREAMS) for module in modules)


LOADER = re.compile(r"(\w+_)?(data_?)?(loader|iter(ator)?|batches|pbar)(_\w+)?", re.IGNORECASE)
EVALUATES = re.compile(r"(^|_|\.)(eval|val|test|pred|infer|gen|sampl)")
"""Begins words of functions and loaders whose data are rarely cut to one length on all ranks."""
EVEN = re.compile(
    rb"DistributedSampler|drop_last *= *True|even_batches|accelerator\.prepare|setup_dataloader"
    rb"|\bJoin\b"
)


def _uneven_evaluation(loop: ast.For | ast.AsyncFor | ast.While, code: Code) -> bool:
    """Whether a loop over evaluation data, cut for the ranks by nothing in this file, is shared."""
    over = None if isinstance(loop, ast.While) else _gone_over(loop.iter)
    if over is None or not LOADER.fullmatch(tail(over)):
        return False
    evaluates = EVALUATES.search(f"{code.function.name}.{tail(over)}".lower())
    managed: list[ast.With | ast.AsyncWith] = code.function.each(ast.With, ast.AsyncWith)
    plainly = any(
        called_name(item.context_expr) in ("no_grad", "inference_mode")
        and loop in walk(*node.body, into=False)
        for node in managed
        for item in node.items
    )
    return (plainly or evaluates is not None) and not code.function.module.has(EVEN)


COUNT = re.compile(
    r"(num_|n_|max_|min_)?(new_)?(\w+_)?(steps?|samples?|batches|length|size|tokens|epochs|iterations"
    r"|iters|items|passes|count)(_\w+)?"
)
"""Names of numbers that set how many steps a rank makes."""


def _goes_to(node: ast.expr, code: Code) -> list[str]:
    """Return the variables and parameters to which a value is assigned or passed."""
    assigned = [
        assignment for assignment in code.function.each(ast.Assign) if assignment.value is node
    ]
    found = [
        name
        for assignment in assigned
        for target in assignment.targets
        for name in names_of(target)[-1:]
    ]
    for call in code.function.each(ast.Call):
        found += [word.arg for word in call.keywords if word.value is node and word.arg]
        for function in callee(call.func, code.function).functions if node in call.args else ():
            found += function.parameters[call.args.index(node) :][:1]
    return found


MAKE_DATA = ("arange", "empty", "full", "ones", "rand", "randint", "randn", "range", "zeros")
"""Functions whose first argument is how much they create."""


def _sized_by_rank(node: ast.Call | ast.Subscript, code: Code) -> bool:
    """Whether data is created or sliced by the rank, or ``even_batches`` is off."""
    if _every_nth_by_rank(node, code) and not _cares_for_lengths(code.function):
        return True
    if isinstance(node, ast.Subscript):
        cut = node.slice
        open_end = isinstance(cut, ast.Slice) and (cut.lower is None) is not (cut.upper is None)
        ends = [cut.lower, cut.upper] if isinstance(cut, ast.Slice) and open_end else []
        return any(isinstance(end, ast.BinOp) and _asks_rank(end, code) for end in ends)
    if any(
        word.arg == "even_batches" and getattr(word.value, "value", 0) is False
        for word in node.keywords
    ):
        return True
    name, sizes = called_name(node), node.args[:1]
    if name not in MAKE_DATA or (name in ("arange", "range") and len(node.args) > 1):
        return False
    return any(
        (isinstance(size, ast.BinOp) and _asks_rank(size, code))
        or (isinstance(size, ast.IfExp) and _asks_rank(size.test, code))
        or (isinstance(size, ast.Name) and size.id in _changed_by_rank(code))
        for size in sizes
    )


def _length_by_rank(over: ast.expr, code: Code) -> bool:
    """Whether an argument of a `range` depends on the rank."""
    if called_name(over) != "range" or not isinstance(over, ast.Call):
        return False
    for given in over.args:
        values = [given]
        if isinstance(given, ast.Name):
            values += code.function.module.ranks.values_of(given.id)
            if given.id in _changed_by_rank(code):
                return True
        for value in values:
            if isinstance(value, ast.IfExp) and _asks_rank(value.test, code):
                return _whole_number(value.body) != _whole_number(value.orelse)
            if isinstance(value, ast.Subscript) and _asks_rank(value.slice, code):
                return True
    return False


def _changed_by_rank(code: Code) -> set[str]:
    """Return names of numbers that are set or changed under a rank test."""
    return {
        target.id
        for node in code.function.each(ast.If)
        if _asks_rank(node.test, code)
        for changed in node.body
        if isinstance(changed, ast.AugAssign)
        or (isinstance(changed, ast.Assign) and _whole_number(changed.value) is not None)
        for target in targets_of(changed)
        if isinstance(target, ast.Name)
    }


def _asks_rank(test: ast.expr, code: Code) -> bool:
    return code.reach.tests.of(test, code.function).asks


def _whole_number(node: ast.expr) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


STATE = ("name", "default", "dist_reduce_fx")
"""Parameters of `add_state` of torchmetrics."""
GATHERS = ("all_gather", "gather", "gather_for_metrics", "all_gather_into_tensor", "all_reduce")
OF_TOKENS = re.compile(
    r"(\w+_)?(attention_mask|input_ids|token_ids|tokens|sequences|(chosen|rejected|shift)_(logits|labels))"
)
"""Names of tensors as long as the longest text of a rank's own batch."""
COUNTED = re.compile(
    r"(num|unfinished|finished|n|max|min|total|mean|sum|count|len|correct|all|padded|gathered)_"
)


def _own_length(given: ast.expr, function: Function, steps: int = 2, *, texts: bool) -> bool:
    """Whether a rank's own data decide how long a tensor is."""
    index = given.slice if isinstance(given, ast.Subscript) else None
    if isinstance(index, ast.Compare) or (
        index is not None and re.search("mask|valid|keep", tail(index))
    ):
        return True
    same = called_name(given) in ("detach", "cpu", "float", "to", "clone", "squeeze", "view")
    if same and isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        return _own_length(given.func.value, function, steps, texts=texts)
    if called_name(given) in ("nonzero", "unique", "masked_select", "argwhere"):
        return True
    if isinstance(given, (ast.Tuple, ast.List)):
        return any(_own_length(part, function, steps, texts=texts) for part in given.elts)
    if isinstance(given, ast.Name) and steps and (values := function.values_of(given.id)):
        return all(_own_length(value, function, steps - 1, texts=texts) for value in values)
    if called_name(given) in JOINS and isinstance(given, ast.Call) and given.args:
        return _collected(ast.unparse(given.args[0]), function)
    constant = getattr(index, "value", None)
    name = constant if isinstance(constant, str) else tail(given)
    return texts and OF_TOKENS.fullmatch(name) is not None and not COUNTED.match(name)


JOINS = frozenset({"cat", "concat", "concatenate", "vstack", "hstack", "tensor"})


def _collected(name: str, function: Function) -> bool:
    """Whether a loop adds to a list, one entry for each sample or batch of this rank."""
    loops: list[ast.For | ast.While] = function.each(ast.For, ast.While)
    # the steps of a `range` are the same on all ranks, but not those that pass a test
    bodies = (
        [loop]
        if isinstance(loop, ast.For) and called_name(loop.iter) != "range"
        else [*parts(ast.If, *loop.body, into=False)]
        for loop in loops
    )
    return any(
        called_name(call) in ("append", "extend") and ast.unparse(call.func.value) == name
        for body in bodies
        for call in parts(ast.Call, *body)
        if isinstance(call.func, ast.Attribute)
    )


@rule(
    "HC302",
    "collective_mismatch",
    "where shapes differ, pad before the call",
    "https://github.com/huggingface/accelerate/pull/1756",
    notes_only=True,
)
def gather_of_own_length(code: Code) -> Iterator[Found]:
    """What is gathered has a length that each rank's data decide: a mask, `nonzero`, `unique`.

    Why it hangs: NCCL waits for bytes that never come, or takes the next call's; gloo aborts.
    A list that torchmetrics gathers item by item (`add_state` without a reduction) counts as well.

    Example:
        dist.all_gather(parts, scores[mask])

    Instead:
        kept = accelerator.pad_across_processes(scores[mask])
        kept = accelerator.gather(kept)
    """
    for call in code.function.each(ast.Call):
        if called_name(call) == "add_state":
            state = {word.arg: ast.unparse(word.value) for word in call.keywords}
            state |= dict(zip(STATE, map(ast.unparse, call.args), strict=False))
            if state.get("default") == "[]" and state.get("dist_reduce_fx", "None") == "None":
                message = "each item of this list is gathered alone: ranks with fewer make no call"
                yield Found(call, message)
        if called_name(call) not in GATHERS:
            continue
        for given in call.args:
            texts = called_name(call) != "all_reduce"  # what is summed is often a count
            own = _own_length(given, code.function, texts=texts)
            if own and any(True for _ in code.reach.call(call, code.function)):
                yield Found(given, f"`{ast.unparse(given)}` has another length on each rank")


# HC4: barriers and locks that not all ranks reach


@rule(
    "HC401",
    "rank_diverged",
    "Move it to setup(), which runs on all ranks.",
    "https://lightning.ai/docs/pytorch/stable/data/datamodule.html#prepare-data",
)
def collective_in_prepare_data(code: Code) -> Iterator[Found]:
    """`prepare_data` makes a collective.

    Why it hangs: Lightning calls `prepare_data` on local rank 0 only. The others wait for that
    rank in a barrier of Lightning's own, without a time limit.

    Example:
        def prepare_data(self):
            download()
            dist.barrier()

    Instead:
        def prepare_data(self):
            download()


        def setup(self, stage):
            self.data = load()
    """
    if code.function.name.endswith(".prepare_data"):
        made = code.made_in(code.function.body)
        above = ".prepare_data"  # calls of a base class are reported there
        own = [item for item in made if not any(at[0].endswith(above) for at in item.path[1:])]
        yield from _first(own, "prepare_data runs on local rank 0 only, and calls {}")


@rule(
    "HC402",
    "file_lock",
    "Leave the lock before the collective.",
    "https://github.com/huggingface/transformers/issues/31019",
)
def collective_under_lock(code: Code) -> Iterator[Found]:
    """A collective is called while a lock is held that the other ranks want.

    Why it hangs: the holder waits in the collective for ranks that wait for its lock.

    Example:
        with FileLock("data.lock"):
            download()
            dist.barrier()

    Instead:
        with FileLock("data.lock"):
            download()
        dist.barrier()
    """
    yield from _while_held(code, lambda held: _is_file_lock(held, code), "")


def _while_held(code: Code, keeps: Callable[[ast.expr], bool], whom: str) -> Iterator[Found]:
    """Yield collectives inside a `with` that makes the other ranks wait."""
    managed: list[ast.With | ast.AsyncWith] = code.function.each(ast.With, ast.AsyncWith)
    for node in managed:
        held = next((item.context_expr for item in node.items if keeps(item.context_expr)), None)
        if held is None:
            continue
        message = f"{{}} waits for ranks that wait for {whom}`{ast.unparse(held)}`"
        # under a test of the rank, the others may want another lock
        tests = (each for each in code.function.each(ast.If) if _asks_rank(each.test, code))
        alike = not any(node in walk(each, into=False) for each in tests)
        yield from _first(code.made_in(node.body), message, node.lineno, closed=alike)


def _is_file_lock(node: ast.expr, code: Code) -> bool:
    name = re.compile(r"(Soft|Unix|Weak|Windows)?FileLock|InterProcessLock|lock_file")
    if isinstance(node, ast.Call):
        return name.fullmatch(called_name(node)) is not None
    path = names_of(node)
    made = code.function.module.made.get(path[-1], set()) if path else set()
    return bool(made) and all(names and name.fullmatch(names[-1]) for names in made)


ONE_FIRST = re.compile(r"(local_)?(rank_zero|main_process)_first|torch_distributed_zero_first")
"""Context managers (Fabric, accelerate, transformers, YOLO, this package): one rank goes first."""


@rule(
    "HC404",
    "rank_diverged",
    "Leave the block before the collective.",
    "https://huggingface.co/docs/accelerate/package_reference/accelerator",
)
def collective_in_one_ranks_turn(code: Code) -> Iterator[Found]:
    """A collective is called where one rank goes first and the others wait for it.

    Why it hangs: the first rank waits in the collective for ranks that are not let in before it
    is done.

    Example:
        with accelerator.main_process_first():
            data = load()
            accelerator.wait_for_everyone()

    Instead:
        with accelerator.main_process_first():
            data = load()
        accelerator.wait_for_everyone()
    """
    yield from _while_held(
        code, lambda held: bool(ONE_FIRST.fullmatch(called_name(held))), "the first one at "
    )


HANDLERS = re.compile(r"on_exception|on_keyboard_interrupt|__del__")
FETCHES = re.compile(r"__getitems?__|collate_fn|worker_init_fn")


@rule(
    "HC403",
    "rank_diverged",
    "Set a flag there, and let all ranks agree on it in the next step.",
    f"{LIGHTNING}/6430",
)
def collective_in_handler(code: Code) -> Iterator[Found]:
    """A collective is made where code runs at a time of its own: a handler, thread or dataset.

    Why it hangs: `on_exception`, a signal's handler, an `atexit` function and `__del__` run when
    something happened to one rank. A thread, a `Dataset` or a `Sampler` goes at its own pace. The
    other ranks are elsewhere, or make their calls in another order.

    Example:
        def on_exception(self, trainer, module, exception):
            trainer.save_checkpoint("emergency.ckpt")

    Instead:
        def on_exception(self, trainer, module, exception):
            torch.save(module.state_dict(), f"emergency-{trainer.global_rank}.pt")
    """
    name, owner = code.function.name.rpartition(".")[2], code.function.owner
    asked = [(code.function, name)] if HANDLERS.fullmatch(name) else []
    for handler, kind in (*asked, *_handlers(code, "signal"), *_handlers(code, "atexit")):
        events = [
            event for event in code.reach.function(handler) if event.sure and event.only is None
        ]
        message = f"{kind} runs where one rank met something, and calls {{}}"
        yield from _first(events, message, closed=kind in ("on_exception", "a signal's handler"))
    bases = owner.kinds if owner and name == "__iter__" else ()
    if FETCHES.fullmatch(name) or any(base.endswith(("Dataset", "Sampler")) for base in bases):
        message = f"{name} runs when this rank's loader asks, perhaps in a worker, and calls {{}}"
        yield from _first(code.made_in(code.function.body), message, closed=False)
    for call in code.function.each(ast.Call):
        given = [word.value for word in call.keywords if word.arg == "target"]
        if called_name(call) == "submit":
            given = call.args[:1]
        for target in given if called_name(call) in ("Thread", "submit") else ():
            for found in callee(target, code.function).functions:
                message = "a thread calls {}, in no order with the calls of its rank"
                made = [event for event in code.reach.function(found) if not event.group]
                yield from _first(made, message, at=call, closed=False)


def _handlers(code: Code, registrar: str) -> Iterator[tuple[Function, str]]:
    """Yield functions registered with `signal.signal` or `atexit.register`."""
    if not code.function.module.has(registrar.encode()):
        return
    at, kind = (1, "a signal's handler") if registrar == "signal" else (0, "an atexit function")
    for call in code.function.each(ast.Call):
        path = names_of(call.func)
        if path[:1] == [registrar] and path[-1] in ("signal", "register") and call.args[at:]:
            for found in callee(call.args[at], code.function).functions:
                yield found, kind


# HC5: groups


@rule("HC501", "rank_diverged", "to run the model on one rank only", f"{TORCH}/81291")
def group_made_by_some(code: Code) -> Iterator[Found]:
    """A process group is made under a test of the rank.

    Why it hangs: `new_group` is collective over all ranks, also those that will not be in it, and
    all have to make their groups in the same order.

    Example:
        if rank in (0, 1):
            group = dist.new_group([0, 1])

    Instead:
        group = dist.new_group([0, 1])  # on every rank
    """
    yield from _parted(code, by_rank=True, leaves=False, makers=True)
    for call in code.function.each(ast.Call) if code.function.module.has(b"new_group") else ():
        given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "ranks")]
        listed = (each for part in given if isinstance(part, ast.List) for each in part.elts)
        members = (tail(each.value) for each in listed if isinstance(each, ast.Subscript))
        if called_name(call) == "new_group" and any(map(GROUPED.search, members)):
            yield Found(call, "each rank makes the group that it is in, and no other")


@rule(
    "HC502",
    "rank_diverged",
    "Give the group whose ranks come there: group=...",
    f"{DIST_DOCS}#groups",
    notes_only=True,
)
def default_group_in_branch_of_group(code: Code) -> Iterator[Found]:
    """A collective of all ranks stands under a test of a rank within a group, or of a stage.

    Why it hangs: only the ranks of that stage come; the default group waits for all.

    Example:
        if pipeline_rank == 0:
            dist.barrier()

    Instead:
        if pipeline_rank == 0:
            dist.barrier(group=stage_group)
    """
    test_name = re.compile(
        r"(get_)?(tensor|pipeline|data|expert|context|model|sequence)\w*_rank|is_pipeline\w*stage\w*"
        r"|is_(first|last)_stage|(tp|pp|dp|ep|cp)_rank"
    )
    for node in code.function.each(ast.If) if code.makes_any else ():
        known = (
            value
            for name in parts(ast.Name, node.test)
            for value in code.function.values_of(name.id)
            if isinstance(value, (ast.Compare, ast.BoolOp))
        )
        if not any(map(test_name.fullmatch, last_names(node.test, *known))):
            continue
        other = {event.name for event in code.reach.block(node.orelse, code.function)}
        made = code.made_in(node.body)
        alone = [event for event in made if not event.group and event.name not in other]
        message = f"{{}} waits for all ranks, and only those of `{ast.unparse(node.test)}` come"
        yield from _first(alone, message, node.lineno, closed=False)


@rule(
    "HC503",
    "collective_mismatch",
    "Go through them in an order that all ranks have: sorted(...).",
    f"{DIST_DOCS}#torch.distributed.new_group",
)
def order_of_a_set(code: Code) -> Iterator[Found]:
    """Collectives are made in the order of a set or folder, or in one that the rank decides.

    Why it hangs: sets of strings have another order in each process, and folders on each machine,
    so ranks make different calls under the same number.

    Example:
        for name in set(metrics):
            dist.all_reduce(metrics[name])

    Instead:
        for name in sorted(metrics):
            dist.all_reduce(metrics[name])
    """
    for loop in code.function.each(ast.For):
        if _unordered(loop.iter, code.function):
            message = "each process has its own order here, and each pass calls {}"
            yield from _first(code.made_in(loop.body), message, at=loop.iter, closed=False)
    for choice in code.function.each(ast.IfExp):
        if not isinstance(choice.body, (ast.List, ast.Tuple)):
            continue
        first, second = (
            [ast.unparse(element) for element in getattr(part, "elts", [])]
            for part in (choice.body, choice.orelse)
        )
        if first != second and sorted(first) == sorted(second) and _asks_rank(choice.test, code):
            message = f"`{ast.unparse(choice)}` has another order on each side"
            yield Found(choice, message, "error" if _gone_through(choice, code) else "note")


UNORDERED = ("set", "frozenset", "listdir", "scandir", "glob", "iglob", "rglob", "iterdir")


def _unordered(over: ast.expr, function: Function, steps: int = 3) -> bool:
    """Whether what is gone through has no order of its own: a set, or files of a folder."""
    if called_name(over) in ("list", "tuple", "enumerate") and isinstance(over, ast.Call):
        return bool(over.args) and _unordered(over.args[0], function, steps)
    path, module = names_of(over), function.module
    if not path or not steps:
        return isinstance(over, (ast.Set, ast.SetComp)) or called_name(over) in UNORDERED
    if path[0] == "self" and len(path) == 2:
        values = module.ranks.values_of(path[1])
    else:
        values = function.values_of(path[0]) if len(path) == 1 else []
    if values:
        return all(_unordered(value, function, steps - 1) for value in values)
    given = module.project.given(function, path[0]) if path[0] in function.parameters else []
    return any(_unordered(value, caller, steps - 1) for value, caller in given)


def _gone_through(order: ast.expr, code: Code) -> bool:
    """Whether a loop with a collective iterates in this order."""
    assigned = [node for node in code.function.each(ast.Assign) if node.value is order]
    targets = [target for node in assigned for target in node.targets]
    for target in targets:
        if isinstance(target, ast.Tuple):  # groups that are each passed to a collective
            made = [event.node for event in code.made_in(code.function.body)]
            given = [last_names(expression) for expression in made]
            parts = [ast.unparse(expression) for expression in target.elts]
            if len({place for part in parts for place, its in enumerate(given) if part in its}) > 1:
                return True
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return any(
        (loop.iter is order or (isinstance(loop.iter, ast.Name) and loop.iter.id in names))
        and any(_sure(event) == "error" for event in code.made_in(loop.body))
        for loop in code.function.each(ast.For)
    )


# HC6: starting up


@rule(
    "HC601",
    "rendezvous",
    "Give the global rank: int(os.environ['RANK']), or dist.get_rank().",
    f"{TORCH_DOCS}/elastic/run.html#environment-variables",
    notes_only=True,
)
def local_rank_as_rank(code: Code) -> Iterator[Found]:
    """The local rank is given where the global one is asked for.

    Why it hangs: on the second machine local ranks begin at 0 again: two processes have one number,
    and the meeting waits for numbers that never come.

    Example:
        dist.init_process_group("nccl", rank=local_rank, world_size=world_size)

    Instead:
        dist.init_process_group("nccl")  # torchrun sets RANK and WORLD_SIZE
    """
    for call in code.function.each(ast.Call):
        if called_name(call) not in ("init_process_group", "DistributedSampler"):
            continue
        for given in (keyword.value for keyword in call.keywords if keyword.arg == "rank"):
            text = ast.unparse(given)
            if "local_rank" in text.lower():
                yield Found(given, f"`{text}` is given as the global rank")


NETWORK = re.compile(
    r"urlretrieve|snapshot_download|hf_hub_download|download_url|wandb\.init|urlopen"
)


@rule(
    "HC602",
    "logger_init",
    "Give it a time limit, or do it before init_process_group.",
    "https://github.com/EleutherAI/bergson/pull/249",
    notes_only=True,
)
def one_rank_waits_for_the_network(code: Code) -> Iterator[Found]:
    """One rank downloads, or starts a logger, while the others go on to their next collective.

    Why it hangs: a slow or dead server holds that rank up, and all others wait until their own time
    limit ends the job. The collective may be in what calls this function.

    Example:
        if rank == 0:
            wandb.init(project="demo")
        dist.barrier()

    Instead:
        if rank == 0:
            wandb.init(project="demo", settings=wandb.Settings(init_timeout=30))
        dist.barrier()
    """
    for block, place, node in code.work_of_one:
        calls = parts(ast.Call, *node.body, into=False)
        slow = [call for call in calls if _uses_network(call, code.function)]
        caught = parts(ast.Try, *node.body)  # wandb.init fails after 90 s of its own
        tried = {call for each in caught for call in parts(ast.Call, *each.body)}
        limited = tried.issuperset(slow) or any("timeout" in ast.unparse(call) for call in slow)
        if behind := [] if limited else code.made_after(block, place):
            message = "one rank waits for the network, the others in {}"
            yield from _first(behind, message, node.lineno, at=slow[0], closed=False)


def _uses_network(call: ast.Call, function: Function) -> bool:
    """Whether a call, or a function of the project that it calls, goes to a server."""
    if NETWORK.search(".".join(names_of(call.func))):
        return True
    return any(
        NETWORK.search(".".join(names_of(inner.func)))
        for called in callee(call.func, function).functions
        for inner in called.each(ast.Call)
    )


STARTS_THREADS = re.compile(rb"Thread\(|ThreadPoolExecutor\(")


@rule(
    "HC603",
    "dataloader_worker",
    'Start children with multiprocessing.get_context("spawn").',
    f"{TORCH}/45198",
    notes_only=True,
)
def fork_after_threads(code: Code) -> Iterator[Found]:
    """A process is forked in a file that starts threads.

    Why it hangs: the child has a copy of each lock that another thread held, and nobody to give it
    back.

    Example:
        threading.Thread(target=report).start()
        multiprocessing.set_start_method("fork")

    Instead:
        threading.Thread(target=report).start()
        multiprocessing.set_start_method("spawn")
    """
    for call in code.function.each(ast.Call):
        path = names_of(call.func)
        forks = path == ["os", "fork"] or (
            called_name(call) in ("set_start_method", "get_context")
            and any(getattr(given, "value", None) == "fork" for given in call.args)
        )
        if forks and code.function.module.has(STARTS_THREADS):
            yield Found(call, "threads of this file may hold a lock that the child copies")
